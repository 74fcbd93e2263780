"""Locations of `--in` and `--out`: paths, globs, and URLs through fsspec."""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.packages import install_hint
from mlctl.services.batch.transient_errors import is_transient, translate_errors

COMPRESSION = {".gz": "gzip", ".zst": "zstd"}
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_GLOB = re.compile(r"[*?\[]")
_SECRET = re.compile(r"([^=&]*(?:pass|secret|token)[^=&]*)=[^&]*", re.IGNORECASE)
# The extra that installs the file system of a scheme.
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure"}
# Names under which fsspec's file systems report a file's version.
_VERSIONS = (
    "ETag", "etag", "generation", "LastModified", "last_modified", "Last-Modified", "mtime",
    "created",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file of the input: `name` below the location, `size` in bytes, and a `version`.

    The version is the time of the last change or a tag, whichever the file system has. `system` is
    fsspec's file system, or None for a local path.
    """

    path: str
    name: str
    size: int
    version: str
    system: Any = None

    def open(self) -> IO[bytes]:
        """Open the content as it is stored."""
        if self.system is None:
            return Path(self.path).open("rb")
        opened: IO[bytes] = self.system.open(self.path, "rb")
        return opened

    @property
    def compression(self) -> str | None:
        """Return Arrow's name of the codec that the file name implies."""
        return next((codec for end, codec in COMPRESSION.items() if self.path.endswith(end)), None)


def scheme_of(location: str) -> str | None:
    """Return the scheme of a URL in lower case; None for a path."""
    match = _SCHEME.match(location)
    return match[1].lower() if match else None


def without_password(location: str) -> str:
    """Return the location for messages and records: user name, but neither password nor token."""
    scheme, separator, rest = location.partition("://")
    place, mark, query = rest.partition("?")
    user, at, host = place.rpartition("@")
    shown = f"{user.partition(':')[0]}{at}{host}"
    query = _SECRET.sub(r"\1=...", query)
    return f"{scheme}{separator}{shown}{mark}{query}" if separator else location


def suffix_of(name: str) -> str:
    """Return the suffix of a file name in lower case, without that of compression."""
    suffixes = [each for each in Path(name.lower()).suffixes if each not in COMPRESSION]
    return suffixes[-1] if suffixes else ""


def open_system(location: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL and the path in it.

    RUNTIME_MISSING names the extra of the URL's scheme.
    """
    import fsspec

    scheme = scheme_of(location) or "file"
    try:
        system, path = fsspec.core.url_to_fs(location)
    except ImportError as error:
        raise MlctlError(
            ErrorCode.RUNTIME_MISSING,
            f"{scheme}:// needs a package that is not installed",
            install_hint(_EXTRAS[scheme]) if scheme in _EXTRAS else str(error),
        ) from error
    except ValueError as error:
        raise MlctlError(ErrorCode.INVALID_INPUT, f"{scheme}:// is not supported") from error
    return system, str(path)


def list_files(location: str) -> list[InputFile]:
    """Return the files at a path, below a folder, or of a glob, ordered by name.

    In a folder, names that begin with "." or "_" are left out. INVALID_INPUT if the location does
    not exist, SOURCE_UNAVAILABLE if it cannot be reached.
    """
    shown = without_password(location)
    if scheme_of(location) in (None, "file"):
        with translate_errors(shown, ErrorCode.SOURCE_UNAVAILABLE):
            return _local_files(Path(location.partition("://")[2] or location), shown)
    system, path = open_system(location)
    with translate_errors(shown, ErrorCode.SOURCE_UNAVAILABLE):
        system.invalidate_cache()
        info = _file_info(system, path)
        if info is not None:
            base, found = path.rpartition("/")[0], {path: info}
        elif match := _GLOB.search(path):
            base = path[: match.start()].rpartition("/")[0]
            found = system.glob(path, detail=True)
        else:
            base, found = path, system.find(path, detail=True)
        if not found:
            _file_info(system, base)  # a listing is also empty if the server did not answer
            raise _missing(shown)
    listed = info is None
    named = ((name[len(base) :].lstrip("/"), name, found[name]) for name in sorted(found))
    return [
        InputFile(path, name, int(each.get("size") or 0), _version(each), system)
        for name, path, each in named
        if not listed or (each.get("type") != "directory" and _is_visible(name))
    ]


def _local_files(path: Path, shown: str) -> list[InputFile]:
    """Return what `list_files` does; importing fsspec would take a tenth of a small job's time."""
    path = path.expanduser().absolute()
    listed = not path.is_file()
    if not listed:
        base, found = path.parent, [str(path)]
    elif path.is_dir():
        base, found = path, _globbed(f"{glob.escape(str(path))}/**")
    else:
        prefix = _GLOB.split(str(path), maxsplit=1)[0]
        base, found = Path(prefix.rpartition("/")[0] or "/"), _globbed(str(path))
        if not base.is_dir() or prefix == str(path):
            raise _missing(shown)
    files = [(str(each.relative_to(base)), each) for each in map(Path, found) if each.is_file()]
    return [
        InputFile(str(each), name, *_local_state(each))
        for name, each in sorted(files)
        if not listed or _is_visible(name)
    ]


def _globbed(pattern: str) -> list[str]:
    return glob.glob(pattern, recursive=True)  # noqa: PTH207 - it follows links to folders


def _local_state(path: Path) -> tuple[int, str]:
    """Return size and version."""
    status = path.stat()
    return status.st_size, str(status.st_mtime_ns)


def _missing(shown: str) -> MlctlError:
    return MlctlError(ErrorCode.INVALID_INPUT, f"{shown} does not exist, or is empty")


def require_unchanged(file: InputFile) -> None:
    """Raise JOB_CHANGED if the file has another size or version than when it was listed."""
    if file.system is None:
        found = _local_state(Path(file.path))
    else:
        file.system.invalidate_cache()
        info = file.system.info(file.path)
        # Other file systems report other versions for a listing than for a single file.
        comparable = "s3" in file.system.protocol or "http" in file.system.protocol
        found = int(info.get("size") or 0), _version(info) if comparable else file.version
    if found != (file.size, file.version):
        raise MlctlError(ErrorCode.JOB_CHANGED, f"{file.name} changed since the start")


def _version(info: Mapping[str, Any]) -> str:
    return next((str(info[key]) for key in _VERSIONS if info.get(key) is not None), "")


def _is_visible(name: str) -> bool:
    return not any(part.startswith((".", "_")) for part in name.split("/"))


def _file_info(system: Any, path: str) -> Mapping[str, Any] | None:
    """Return the attributes of a file; None for a folder or a path that does not exist."""
    try:
        info: Mapping[str, Any] = system.info(path)
    except (FileNotFoundError, PermissionError) as error:
        if is_transient(error):
            raise
        return None
    return info if info.get("type") == "file" else None
