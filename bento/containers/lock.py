"""A lock file: every package of an image with its one version and the sha256 of its wheels.

The versions are those installed beside mlctl, because these were tested. The hashes are those of
the wheels for the image's platform, so the image gets these bytes or none. Nothing is built from
source: an image needs no compiler.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mlctl.core.errors import ErrorCode, MlctlError

# The glibc of Debian 12, on which the base image is built.
_GLIBC = "2_36"
_ENTRY = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.+!_-]+)((?: --hash=sha256:[0-9a-f]{64})+)"
)
_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_MAX_BYTES = 4 << 20


class Platform(Enum):
    """The platform of an image: its OCI name and the processor's name in wheels."""

    AMD64 = ("linux/amd64", "x86_64")
    ARM64 = ("linux/arm64", "aarch64")

    @classmethod
    def of(cls, oci: str) -> Platform:
        """Return the platform with that OCI name."""
        return next(each for each in cls if each.oci == oci)

    @property
    def oci(self) -> str:
        """The name that container engines use."""
        return self.value[0]

    @property
    def machine(self) -> str:
        """The processor's name in Python and in wheels."""
        return self.value[1]

    @property
    def uv_name(self) -> str:
        """The name that uv uses; wheels for an older glibc are compatible."""
        return f"{self.machine}-manylinux_{_GLIBC}"


@dataclass(frozen=True, slots=True)
class Package:
    """One package: its normalized name, its version, and the sha256 of its wheels in hex.

    `needs` (normalized names) and `licence` (an SPDX expression or the package's own text) come
    from its metadata, where it is installed beside mlctl.
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
        """Return the file for `pip install --require-hashes`; it names no package index."""
        entries = []
        for each in self.packages:
            hashes = [f"    --hash=sha256:{one}" for one in sorted(each.sha256)]
            entries.append(" \\\n".join([f"{each.name}=={each.version}", *hashes]))
        return "\n".join(entries) + "\n"

    def versions(self) -> Mapping[str, str]:
        """Return the version of each package by its name."""
        return {each.name: each.version for each in self.packages}


def read_lock(path: Path, requirements: Iterable[str]) -> Lock:
    """Read the lock file `path`, which must satisfy every one of `requirements`.

    INVALID_INPUT for a line that is not NAME==VERSION with hashes, or a requirement that is
    missing or has another version.
    """
    try:
        content = path.read_bytes()
        text = content.decode() if len(content) <= _MAX_BYTES else ""
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(path, "it is not a readable text file") from error
    lock = parse_lock(text, path)
    versions = lock.versions()
    for line in requirements:
        required = Requirement(line)
        version = versions.get(canonicalize_name(required.name))
        if version is None or version not in required.specifier:
            raise _unusable(path, f"the image needs {line}, the file has {version or 'none'}")
    return lock


def parse_lock(text: str, path: Path) -> Lock:
    """Parse the text of a lock file; INVALID_INPUT names the line of `path` that is wrong."""
    found = dict[str, Package]()
    joined = re.sub(r"[ \t]*\\\n[ \t]*", " ", text)
    for line in joined.splitlines():
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise _unusable(path, f"{entry[:60]!r} is not NAME==VERSION --hash=sha256:...")
        name = canonicalize_name(match[1])
        if name in found:
            raise _unusable(path, f"it lists {name} twice")
        found[name] = Package(name, match[2], tuple(_HASH.findall(match[3])))
    if not found:
        raise _unusable(path, "it lists no package")
    return Lock(tuple(found[name] for name in sorted(found)))


def _unusable(path: Path, reason: str) -> MlctlError:
    return MlctlError(
        ErrorCode.INVALID_INPUT,
        f"the lock file {path} cannot be used: {reason}",
        "Where a package index is reachable, run `mlctl containerize BENTO --engine none "
        "--out DIR` and take DIR/requirements.lock.",
    )
