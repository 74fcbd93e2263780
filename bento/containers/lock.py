"""A Bento's packages and all that these need, each with its one version and its wheel's hash.

The versions are those that are installed here, as far as they are: that is what was proved.
The hashes are the package index's for the wheels of the image's platform, so that the image
gets these bytes or none. Nothing is built from source: an image needs no compiler then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from bundle.errors import ErrorCode, MlctlError

# What Debian 12, on which the base image stands, has; wheels for an older glibc run there too.
_GLIBC_MINORS = range(36, 4, -1)
_ENTRY = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.+!_-]+)((?: --hash=sha256:[0-9a-f]{64})+)"
)
_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_MAX_BYTES = 4 << 20


class Platform(Enum):
    """What an image runs on: its OCI name and the processor's name in wheels."""

    AMD64 = ("linux/amd64", "x86_64")
    ARM64 = ("linux/arm64", "aarch64")

    @classmethod
    def of(cls, oci: str) -> Platform:
        """The platform with that OCI name."""
        return next(each for each in cls if each.oci == oci)

    @property
    def oci(self) -> str:
        """As container engines write it."""
        return self.value[0]

    @property
    def machine(self) -> str:
        """As Python writes it."""
        return self.value[1]

    @property
    def tags(self) -> tuple[str, ...]:
        """The platform tags of the wheels that run there, the newest first."""
        return tuple(f"manylinux_2_{minor}_{self.machine}" for minor in _GLIBC_MINORS) + tuple(
            f"{old}_{self.machine}" for old in ("manylinux2014", "manylinux2010", "manylinux1")
        )


@dataclass(frozen=True, slots=True)
class Package:
    """One package: its normal name, the sha256 of its wheels, and the packages that it needs.

    `needs` and `licence` (an SPDX expression or the package's own words) are what its
    metadata says; a lock file that was read has neither.
    """

    name: str
    version: str
    sha256: tuple[str, ...]
    needs: tuple[str, ...] = ()
    licence: str | None = None


@dataclass(frozen=True, slots=True)
class Lock:
    """All packages of an image, sorted by name."""

    packages: tuple[Package, ...]

    def text(self) -> str:
        """The file for `pip install --require-hashes`; it names no index."""
        entries = []
        for each in self.packages:
            hashes = [f"    --hash=sha256:{one}" for one in sorted(each.sha256)]
            entries.append(" \\\n".join([f"{each.name}=={each.version}", *hashes]))
        return "\n".join(entries) + "\n"

    def versions(self) -> Mapping[str, str]:
        """The version of each package."""
        return {each.name: each.version for each in self.packages}


def read_lock(path: Path, requirements: Iterable[str]) -> Lock:
    """The lock in the file `path`, which must hold every one of `requirements`.

    INVALID_INPUT for a line that is not NAME==VERSION with hashes, or a package that is
    not there in the version that the Bento needs.
    """
    try:
        content = path.read_bytes()
        text = content.decode() if len(content) <= _MAX_BYTES else ""
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(path, "it cannot be read as text") from error
    lock = parse_lock(text, path)
    have = lock.versions()
    for line in requirements:
        wanted = Requirement(line)
        version = have.get(canonicalize_name(wanted.name))
        if version is None or version not in wanted.specifier:
            raise _unusable(path, f"the Bento needs {line}, the file has {version or 'none'}")
    return lock


def parse_lock(text: str, path: Path) -> Lock:
    """The lock whose text is `text`; INVALID_INPUT names the line of `path` that is wrong."""
    found = dict[str, Package]()
    whole = re.sub(r"[ \t]*\\\n[ \t]*", " ", text)
    for line in whole.splitlines():
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise _unusable(path, f"{entry[:60]!r} is not NAME==VERSION --hash=sha256:...")
        name = canonicalize_name(match[1])
        if name in found:
            raise _unusable(path, f"it has {name} twice")
        found[name] = Package(name, match[2], tuple(_HASH.findall(match[3])))
    if not found:
        raise _unusable(path, "it holds no package")
    return Lock(tuple(found[name] for name in sorted(found)))


def lock_of_report(
    report: Sequence[Mapping[str, object]], requirements: Sequence[str], platform: Platform
) -> Lock:
    """The lock of what pip's installation report lists.

    pip asks the markers of this machine, not of the image's, so what they say there is asked
    again: INVALID_INPUT if a package would be missing there; one that is not needed is left out.
    """
    found = dict[str, Package]()
    lines = dict[str, list[Requirement]]()
    for item in report:
        package, needs = _package(item)
        found[package.name], lines[package.name] = package, needs
    edges = reach(requirements, lines, platform)
    if absent := sorted(edges.keys() - found.keys()):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"on {platform.oci} the Bento also needs {absent[0]}, which this machine does not",
            "Make the lock file on such a machine and give it with --lock.",
        )
    packages = [
        Package(each.name, each.version, each.sha256, tuple(sorted(edges[each.name])), each.licence)
        for name, each in sorted(found.items())
        if name in edges
    ]
    return Lock(tuple(packages))


def reach(
    requirements: Sequence[str], lines: Mapping[str, Sequence[Requirement]], platform: Platform
) -> dict[str, set[str]]:
    """All packages that `requirements` lead to on `platform`, each with those it needs.

    `lines` has what each package asks for.
    """
    edges = dict[str, set[str]]()
    extras = dict[str, set[str]]()
    waiting = [Requirement(line) for line in requirements]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        known = extras.get(name)
        asked = {"", *wanted.extras}
        if known is not None and asked <= known:
            continue
        extras[name] = asked | (known or set())
        applies = [line for line in lines.get(name, ()) if _applies(line, extras[name], platform)]
        edges[name] = {canonicalize_name(line.name) for line in applies}
        waiting += applies
    return edges


def _applies(line: Requirement, extras: set[str], platform: Platform) -> bool:
    if line.marker is None:
        return True
    there = {"platform_machine": platform.machine, "sys_platform": "linux"}
    there |= {"platform_system": "Linux", "os_name": "posix"}
    return any(line.marker.evaluate({**there, "extra": extra}) for extra in extras)


def _package(item: Mapping[str, object]) -> tuple[Package, list[Requirement]]:
    metadata, download = item.get("metadata"), item.get("download_info")
    if not isinstance(metadata, dict) or not isinstance(download, dict):
        raise _odd()
    archive = download.get("archive_info") or {}
    sha256 = (archive.get("hashes") or {}).get("sha256")
    name = canonicalize_name(str(metadata.get("name")))
    version = str(metadata.get("version"))
    if not sha256:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"the package index tells no sha256 of {name} {version}",
            "Use an index that does, or give a lock file with --lock.",
        )
    try:
        needs = [Requirement(str(line)) for line in metadata.get("requires_dist") or ()]
    except InvalidRequirement as error:
        raise _odd() from error
    package = Package(name, version, (str(sha256),), licence=licence_of(metadata))
    return package, needs


def licence_of(metadata: Mapping[str, object]) -> str | None:
    """The licence that a package's metadata names: an SPDX expression if it has one."""
    for field in ("license_expression", "license"):
        value = metadata.get(field)
        if isinstance(value, str) and 0 < len(value.strip()) <= 64 and "\n" not in value.strip():
            return value.strip()
    classifiers = metadata.get("classifier")
    lines = classifiers if isinstance(classifiers, list) else []
    named = [str(line).rpartition(" :: ")[2] for line in lines if str(line).startswith("License")]
    return " / ".join(named) or None


def _odd() -> MlctlError:
    return MlctlError(ErrorCode.INTERNAL, "pip's installation report has an unknown form")


def _unusable(path: Path, reason: str) -> MlctlError:
    return MlctlError(
        ErrorCode.INVALID_INPUT,
        f"the lock file {path} cannot be used: {reason}",
        "Make it with `mlctl containerize` where a package index can be reached.",
    )
