"""The lock of a Bento: from a lock file, or resolved by uv with the package index that pip uses.

uv reads metadata only: it downloads no package and installs none.
"""

from __future__ import annotations

import ast
import math
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from email.message import Message
from importlib import metadata, util
from pathlib import Path
from typing import Any, cast

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mlctl.bento.containers.extras import extra_requirements
from mlctl.bento.containers.lock import Lock, Package, Platform, read_lock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.packages import install_hint, installed_version
from mlctl.services.layout.bento_store import BentoInfo
from mlctl.services.layout.signing import signing_requirements

# pip's settings and uv's variables for the same. They go through the environment, because other
# users can read a command's arguments, and the URL of an index may hold a password.
_UV_VARIABLES = {
    "cert": "SSL_CERT_FILE",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "index-url": "UV_DEFAULT_INDEX",
    "proxy": "ALL_PROXY",
    "retries": "UV_HTTP_RETRIES",
    "timeout": "UV_HTTP_TIMEOUT",
    "trusted-host": "UV_INSECURE_HOST",
}
_UNREACHABLE = ("Failed to fetch", "error sending request", "Request failed", "timed out")
_NO_SOLUTION = 1  # uv's exit code if no set of wheels satisfies the requirements
_PASSWORD = re.compile(r"://[^/@\s]*@")  # of an index, in its URL
_CAUSE = re.compile(r"^\s*cause: (.+)$", re.MULTILINE)
_CAUSE_CHARACTERS = 600
_TIMEOUT_SECONDS = 900.0


def lock_for(
    bento: BentoInfo, platform: Platform, file: Path | None, extras: Iterable[str] = ()
) -> Lock:
    """Return the lock of what `bento` and `extras` need, from `file` or else from the index.

    Raises as `extra_requirements`, `read_lock` and `resolve` do.
    """
    requirements = requirements_of(bento)
    requirements += extra_requirements(extras, requirements)
    lock = resolve(requirements, platform) if file is None else read_lock(file, requirements)
    return complete(lock, requirements, platform)


def requirements_of(bento: BentoInfo) -> list[str]:
    """Return `package==version` of each package that the Bento itself names.

    A signed Bento also needs the packages that verify its signatures.
    """
    path = bento.path / "env" / "python" / "requirements.txt"
    if not path.is_file():
        raise MlctlError(
            ErrorCode.BENTO_NOT_FOUND, f"the Bento {bento.tag} has no list of requirements"
        )
    named = [line.strip() for line in path.read_text().splitlines() if line.strip()]
    return [*named, *signing_requirements(bento.source)]


def python_version() -> str:
    """Return the image's Python as MAJOR.MINOR: the one that runs mlctl, which was tested."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def resolve(requirements: Sequence[str], platform: Platform) -> Lock:
    """Resolve `requirements` for `platform` in the versions that are installed here.

    Markers are those of the image's platform. PACKAGE_INDEX_UNAVAILABLE without an index,
    INVALID_INPUT if no set of wheels satisfies the requirements, RUNTIME_MISSING without uv.
    """
    try:
        from uv import find_uv_bin
    except ModuleNotFoundError as error:
        raise MlctlError(
            ErrorCode.RUNTIME_MISSING, "package 'uv' is not installed", install_hint("containers")
        ) from error
    pip = _pip_settings()
    with tempfile.TemporaryDirectory(prefix="mlctl-lock-") as name:
        folder = Path(name)
        (folder / "requirements.txt").write_text("\n".join(requirements))
        (folder / "constraints.txt").write_text("\n".join(installed_pins(requirements)))
        command = [find_uv_bin(), "pip", "compile", "requirements.txt"]
        command += ["--constraint", "constraints.txt", "--format", "pylock.toml", "--quiet"]
        command += ["--only-binary", ":all:", "--python-platform", platform.uv_name]
        command += ["--python-version", python_version(), "--python", sys.executable]
        # Another index is asked only for versions that the ones before it lack.
        command += ["--index-strategy", "unsafe-first-match"]
        if pip.get("no-index") in {"1", "true", "yes", "on"}:
            command.append("--no-index")
        done = subprocess.run(
            command,
            cwd=folder,
            env={**_uv_environment(pip), **os.environ},
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_SECONDS,
        )
    if done.returncode != 0:
        raise _failure(done.returncode, _PASSWORD.sub("://", done.stderr), platform)
    return Lock(tuple(_package(each) for each in tomllib.loads(done.stdout)["packages"]))


def complete(lock: Lock, requirements: Sequence[str], platform: Platform) -> Lock:
    """Add what the metadata of the packages says, for those that are installed here."""
    found = {each.name: _installed(each) for each in lock.packages}
    lines = {
        name: [Requirement(line) for line in each.get_all("Requires-Dist") or ()]
        for name, each in found.items()
        if each is not None
    }
    needs = needs_of(requirements, lines, platform)
    completed = [
        replace(
            each,
            needs=tuple(sorted(needs.get(each.name, ()))),
            licence=licence_of(found[each.name]),
        )
        for each in lock.packages
    ]
    return Lock(tuple(completed))


def needs_of(
    requirements: Sequence[str], lines: Mapping[str, Sequence[Requirement]], platform: Platform
) -> dict[str, set[str]]:
    """Return the packages that each package needs on `platform`, starting from `requirements`.

    `lines` holds each package's own requirements; extras count where they are requested.
    """
    needs = dict[str, set[str]]()
    extras = dict[str, set[str]]()
    waiting = [Requirement(line) for line in requirements]
    while waiting:
        required = waiting.pop()
        name = canonicalize_name(required.name)
        requested = {"", *required.extras}
        if requested <= extras.get(name, set()):
            continue
        extras[name] = requested | extras.get(name, set())
        applying = [each for each in lines.get(name, ()) if _applies(each, extras[name], platform)]
        needs[name] = {canonicalize_name(each.name) for each in applying}
        waiting += applying
    return needs


def installed_pins(requirements: Iterable[str]) -> list[str]:
    """Return NAME==VERSION of each installed package that `requirements` do not name.

    Local versions such as 2.13.0+cpu are left out: they are on no index.
    """
    named = {canonicalize_name(Requirement(line).name) for line in requirements}
    versions = {
        canonicalize_name(each.name): each.version
        for each in metadata.distributions()
        if each.name and "+" not in each.version
    }
    kept = sorted(versions.keys() - named - {"mlctl-serving", "pip"})
    return [f"{name}=={versions[name]}" for name in kept]


def licence_of(found: Message | None) -> str | None:
    """Return the licence in a package's metadata: an SPDX expression if it has one."""
    if found is None:
        return None
    for field in ("License-Expression", "License"):
        text = str(found.get(field) or "").strip()
        if 0 < len(text) <= 64 and "\n" not in text:
            return text
    classifiers = [str(line) for line in found.get_all("Classifier") or ()]
    named = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License")]
    return " / ".join(named) or None


def _applies(line: Requirement, extras: set[str], platform: Platform) -> bool:
    if line.marker is None:
        return True
    target = {"platform_machine": platform.machine, "sys_platform": "linux"}
    target |= {"platform_system": "Linux", "os_name": "posix"}
    return any(line.marker.evaluate({**target, "extra": extra}) for extra in extras)


def _installed(package: Package) -> Message | None:
    """Return the metadata of this very version, if it is installed here."""
    if installed_version(package.name) != package.version:
        return None
    return cast(Message, metadata.metadata(package.name))


def _pip_settings() -> dict[str, str]:
    """Return pip's settings from its files and its environment, by their long names."""
    if util.find_spec("pip") is None:
        return {}
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in sections:
            sections[section][key.removeprefix("default-")] = str(ast.literal_eval(value))
    return {key: text for section in sections.values() for key, text in section.items()}


def _uv_environment(pip: Mapping[str, str]) -> dict[str, str]:
    found = {_UV_VARIABLES[key]: value for key, value in pip.items() if key in _UV_VARIABLES}
    if "UV_FIND_LINKS" in found:
        found["UV_FIND_LINKS"] = ",".join(found["UV_FIND_LINKS"].split())
    if "UV_HTTP_TIMEOUT" in found:  # uv takes whole seconds
        found["UV_HTTP_TIMEOUT"] = str(math.ceil(float(found["UV_HTTP_TIMEOUT"])))
    return found


def _package(entry: Mapping[str, Any]) -> Package:
    name, version = str(entry["name"]), str(entry["version"])
    hashes = tuple(str(wheel.get("hashes", {}).get("sha256", "")) for wheel in entry["wheels"])
    if not all(hashes):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"the package index has no sha256 of {name} {version}",
            "Use an index that has one, or give a lock file with --lock.",
        )
    return Package(name, version, hashes)


def _failure(returncode: int, output: str, platform: Platform) -> MlctlError:
    if any(mark in output for mark in _UNREACHABLE):
        return MlctlError(
            ErrorCode.PACKAGE_INDEX_UNAVAILABLE,
            "the package index did not answer, so the hashes of the wheels are unknown",
        )
    if returncode != _NO_SOLUTION:
        return MlctlError(
            ErrorCode.INTERNAL,
            f"uv failed with exit code {returncode}: {output.strip()[:_CAUSE_CHARACTERS]}",
            "Give a lock file with --lock.",
        )
    cause = " ".join(_CAUSE.findall(output))[:_CAUSE_CHARACTERS]
    return MlctlError(
        ErrorCode.INVALID_INPUT,
        f"no set of wheels for {platform.oci} and Python {python_version()} satisfies the Bento: "
        f"{cause}",
        "Set an index that has the wheels (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS), "
        "or give a lock file with --lock.",
    )
