"""What `--in` and `--out` mean: paths, globs and URLs, on this machine or by fsspec."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bundle.errors import ErrorCode, MlctlError
from bundle.packages import install_hint
from services.batch.transient_errors import cause, is_away, refusal

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_GLOB = re.compile(r"[*?\[]")
_COMPRESSION = (".gz", ".zst")


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file of the input: `name` below what was given, its `size` and a `version` of it.

    The version is what the file system has: the time of the last change or a tag.
    """

    path: str
    name: str
    size: int
    version: str
    system: Any = None

    def open(self) -> IO[bytes]:
        """The content; without a file system of fsspec it is a file of this machine."""
        if self.system is None:
            return Path(self.path).open("rb")
        opened: IO[bytes] = self.system.open(self.path, "rb")
        return opened


def scheme_of(location: str) -> str | None:
    """The scheme of a URL in lower case; None for a path."""
    match = _SCHEME.match(location)
    return match[1].lower() if match else None


def without_password(location: str) -> str:
    """A location for messages and ledgers: of a URL's user only the name is left."""
    scheme, separator, rest = location.partition("://")
    place, mark, query = rest.partition("?")
    user, at, host = place.rpartition("@")
    shown = f"{user.partition(':')[0]}{at}{host}"
    secret = re.sub(
        r"([^=&]*(?:pass|secret|token)[^=&]*)=[^&]*", r"\1=...", query, flags=re.IGNORECASE
    )
    return f"{scheme}{separator}{shown}{mark}{secret}" if separator else location


def form_of(
    location: str, by_scheme: Mapping[str, str], by_suffix: Mapping[str, str]
) -> str | None:
    """What the tables have for a location's scheme, or else for its name's suffix."""
    scheme = scheme_of(location)
    if scheme in by_scheme:
        return by_scheme[scheme or ""]
    name = location.rstrip("/").rpartition("/")[2].lower()
    for ending in _COMPRESSION:
        if name.endswith(ending) and name not in by_suffix:
            name = name.removesuffix(ending)
    return next((form for suffix, form in by_suffix.items() if name.endswith(suffix)), None)


def suffixes_at(location: str) -> Iterator[str]:
    """The suffixes of the files in a folder or of a glob, without those of compression."""
    for file in list_files(location):
        suffixes = [suffix for suffix in Path(file.name).suffixes if suffix not in _COMPRESSION]
        yield (suffixes or [""])[-1].lower()


def list_files(location: str, endings: tuple[str, ...] = ("",)) -> list[InputFile]:
    """The files at a path, below a folder, or of a glob, in order of their names.

    What begins with "." or "_" in a folder is left out, as are names without one of `endings`.
    INVALID_INPUT if the place does not exist, SOURCE_UNAVAILABLE if it does not answer.
    """
    if scheme_of(location) not in (None, "file"):
        with reached(without_password(location)):
            return _remote_files(location, endings)
    path = Path(location.removeprefix("file://"))
    if path.is_file():
        return [_local(path, path.name)]
    if path.is_dir():
        return _visible(path, path.rglob("*"), endings)
    if not _GLOB.search(str(path)):
        raise MlctlError(ErrorCode.INVALID_INPUT, f"{location} does not exist")
    parts = path.parts
    fixed = next(index for index, part in enumerate(parts) if _GLOB.search(part))
    base = Path(*parts[:fixed])
    return _visible(base, base.glob(str(Path(*parts[fixed:]))), endings)


def _visible(base: Path, found: Iterator[Path], endings: tuple[str, ...]) -> list[InputFile]:
    files = ((path.relative_to(base), path) for path in found if path.is_file())
    return [
        _local(path, relative.as_posix())
        for relative, path in sorted(files)
        if _counts(relative.as_posix(), endings)
    ]


def _counts(name: str, endings: tuple[str, ...]) -> bool:
    hidden = any(part.startswith((".", "_")) for part in name.split("/"))
    return not hidden and name.lower().endswith(endings)


def _local(path: Path, name: str) -> InputFile:
    status = path.stat()
    return InputFile(str(path), name, status.st_size, str(status.st_mtime_ns))


def _remote_files(location: str, endings: tuple[str, ...]) -> list[InputFile]:
    system, path = open_system(location)
    if _GLOB.search(path):
        base = path[: _first_glob(path)].rpartition("/")[0]
        found = system.glob(path, detail=True)
    elif (info := _file_info(system, path)) is not None:
        base, found = path.rpartition("/")[0], {path: info}
    else:
        base, found = path, system.find(path, detail=True)
    if not found:
        _file_info(system, base)  # a listing may be empty because nobody answered
        raise MlctlError(ErrorCode.INVALID_INPUT, f"{location} does not exist, or is empty")
    files = ((name[len(base) :].lstrip("/"), name, found[name]) for name in sorted(found))
    return [
        InputFile(name, short, int(info.get("size") or 0), _version(info), system)
        for short, name, info in files
        if info.get("type") != "directory" and _counts(short, endings)
    ]


def _file_info(system: Any, path: str) -> Mapping[str, Any] | None:
    """What is known of a file; None if it is a folder or not there."""
    try:
        info: Mapping[str, Any] = system.info(path)
    except (FileNotFoundError, PermissionError) as error:
        if is_away(error):
            raise
        return None
    return info if info.get("type") == "file" else None


@contextlib.contextmanager
def reached(place: str) -> Iterator[None]:
    """SOURCE_UNAVAILABLE for errors of a remote file system that may pass by themselves.

    INVALID_INPUT for what is not there, or not for who asks.
    """
    try:
        yield
    except Exception as error:  # each file system has its own
        if is_away(error):
            raise MlctlError(
                ErrorCode.SOURCE_UNAVAILABLE, f"{place} cannot be reached: {cause(error)}"
            ) from error
        if (reason := refusal(error)) is None:
            raise
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{place} cannot be read: {reason}",
            "Check the address, and the credentials that its file system takes.",
        ) from error


def _first_glob(path: str) -> int:
    match = _GLOB.search(path)
    return match.start() if match else len(path)


def _version(info: Mapping[str, Any]) -> str:
    """What a file system knows of a file's version, by the names that fsspec's use."""
    names = (
        "ETag", "etag", "generation", "LastModified", "last_modified", "Last-Modified", "mtime",
        "created",
    )  # fmt: skip
    return next((str(info[name]) for name in names if info.get(name) is not None), "")


def open_system(location: str) -> tuple[Any, str]:
    """fsspec's file system for a URL, and the path in it; RUNTIME_MISSING names the package."""
    try:
        import fsspec
    except ImportError as error:
        raise MlctlError(
            ErrorCode.RUNTIME_MISSING,
            "URLs need the package fsspec, which is not installed",
            install_hint("batch"),
        ) from error
    try:
        system, path = fsspec.core.url_to_fs(location)
    except ImportError as error:
        raise MlctlError(
            ErrorCode.RUNTIME_MISSING,
            f"URLs of {scheme_of(location)}:// need a package that is not installed",
            str(error),
        ) from error
    except ValueError as error:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"{scheme_of(location)}:// is no known form of URL"
        ) from error
    return system, str(path)
