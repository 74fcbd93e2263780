"""Ask the package index, through pip, which wheels an image needs. Nothing is installed."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from email.message import Message
from importlib import metadata, util
from pathlib import Path
from typing import cast

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bento.containers.lock import Lock, Package, Platform, licence_of, lock_of_report, reach
from bundle.errors import ErrorCode, MlctlError
from bundle.packages import installed_version

_OFFLINE = ("connection", "Could not fetch URL", "Temporary failure", "ProxyError", "timed out")
_NO_WHEEL = "No matching distribution found for "
_TIMEOUT_SECONDS = 900.0


def python_version() -> str:
    """The Python of the image, as MAJOR.MINOR: the one that runs here, as it was proved."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def resolve(requirements: Sequence[str], platform: Platform) -> Lock:
    """The lock of `requirements` for `platform`, from the index that pip is set up to use.

    PACKAGE_INDEX_UNAVAILABLE if that cannot be reached, INVALID_INPUT for a package without a wheel
    for the platform, RUNTIME_MISSING without pip. It takes a minute for a hundred packages.
    """
    if util.find_spec("pip") is None:
        raise MlctlError(
            ErrorCode.RUNTIME_MISSING,
            "pip is not installed beside mlctl",
            "`python -m ensurepip` installs it; or give a lock file with --lock.",
        )
    with tempfile.TemporaryDirectory(prefix="mlctl-lock-") as name:
        folder = Path(name)
        (folder / "requirements.txt").write_text("\n".join(requirements))
        (folder / "constraints.txt").write_text("\n".join(proved(requirements)))
        done = subprocess.run(
            _command(folder, platform),
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_SECONDS,
        )
        if done.returncode != 0:
            raise _failed(done.stderr, platform)
        report = json.loads((folder / "report.json").read_text())
    lock = lock_of_report(report["install"], requirements, platform)
    return Lock(tuple(_with_licence(package) for package in lock.packages))


def complete(lock: Lock, requirements: Sequence[str], platform: Platform) -> Lock:
    """A lock that was read, with what its packages say of themselves where they are installed."""
    lines = {
        each.name: [Requirement(line) for line in found.get_all("Requires-Dist") or ()]
        for each in lock.packages
        if (found := _installed(each)) is not None
    }
    edges = reach(requirements, lines, platform)
    told = [
        replace(_with_licence(each), needs=tuple(sorted(edges.get(each.name, ()))))
        for each in lock.packages
    ]
    return Lock(tuple(told))


def _command(folder: Path, platform: Platform) -> list[str]:
    """Packages are chosen for the platform; --target is what lets pip choose for another."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", "--ignore-installed", "--only-binary", ":all:"]
    command += ["--target", str(folder / "none"), "--report", str(folder / "report.json")]
    command += ["--python-version", python_version(), "--implementation", "cp"]
    for tag in platform.tags:
        command += ["--platform", tag]
    command += ["--constraint", str(folder / "constraints.txt")]
    return [*command, "--requirement", str(folder / "requirements.txt")]


def proved(requirements: Iterable[str]) -> list[str]:
    """NAME==VERSION of what is installed here, but for what is asked for by itself."""
    asked = {canonicalize_name(Requirement(line).name) for line in requirements}
    here = {
        canonicalize_name(each.name): each.version
        for each in metadata.distributions()
        if each.name and "+" not in each.version
    }
    return [f"{name}=={here[name]}" for name in sorted(here.keys() - asked - {"mlctl", "pip"})]


def _with_licence(package: Package) -> Package:
    """pip's report leaves out the newer field of licences; what is installed here has it."""
    found = _installed(package)
    if found is None:
        return package
    fields: Mapping[str, object] = {
        "license_expression": found.get("License-Expression"),
        "license": found.get("License"),
        "classifier": found.get_all("Classifier"),
    }
    return replace(package, licence=licence_of(fields) or package.licence)


def _installed(package: Package) -> Message | None:
    """The metadata of this very version, if it is installed here."""
    if installed_version(package.name) != package.version:
        return None
    return cast(Message, metadata.metadata(package.name))


def _failed(words: str, platform: Platform) -> MlctlError:
    if any(mark in words for mark in _OFFLINE):
        return MlctlError(
            ErrorCode.PACKAGE_INDEX_UNAVAILABLE,
            "the package index could not be reached, so the hashes of the wheels are not known",
        )
    missing = [line for line in words.splitlines() if _NO_WHEEL in line]
    if missing:
        package = missing[0].partition(_NO_WHEEL)[2].split(" ")[0]
        return MlctlError(
            ErrorCode.INVALID_INPUT,
            f"the package index has no wheel of {package} for {platform.oci} and Python "
            f"{python_version()}",
            "Point pip to an index that has it (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, "
            "PIP_FIND_LINKS), or give a lock file with --lock.",
        )
    return MlctlError(ErrorCode.INTERNAL, f"pip could not choose the packages: {words[-1500:]}")
