"""Finished work by content hash, so that a killed or repeated run goes on where it was.

An entry is a directory that lists its files with their sha256, the key that it was
made for, and the seconds it took. It appears only when complete; one that does not
match its list is built again.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from bundle.clock import Clock, SystemClock
from bundle.errors import MlctlError
from bundle.files import scratch_directory, sha256_file, write_atomic
from bundle.home import state_dir
from bundle.manifest import canonical_json
from bundle.packages import installed_version
from bundle.paths import resolve_inside

LIST_NAME = "entry.json"

Key = Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True)
class Entry:
    """A finished directory; `reused` if it was there before."""

    root: Path
    reused: bool


@dataclass(frozen=True, slots=True)
class Record:
    """What an entry says of itself; `files` maps names to hex sha256."""

    key: dict[str, str | int | float | bool | None]
    files: dict[str, str]
    seconds: float


def fetch_or_build(key: Key, build: Callable[[Path], None], clock: Clock | None = None) -> Entry:
    """The entry for `key`; if there is none that is whole, `build` fills an empty directory.

    What `build` raises passes through and leaves nothing behind.
    """
    clock = clock or SystemClock()
    target = entry_path(key)
    if _is_whole(target):
        return Entry(target, reused=True)
    with scratch_directory(target.parent) as scratch:
        start = clock.monotonic()
        build(scratch)
        seconds = round(clock.monotonic() - start, 3)
        files = {path.name: sha256_file(path) for path in sorted(scratch.iterdir())}
        record = Record(dict(key), files, seconds)
        write_atomic(scratch / LIST_NAME, canonical_json(asdict(record)))
        shutil.rmtree(target, ignore_errors=True)
        scratch.rename(target)
    return Entry(target, reused=False)


def is_cached(key: Key) -> bool:
    """Whether `fetch_or_build` would have nothing to build."""
    return _is_whole(entry_path(key))


def entry_path(key: Key) -> Path:
    """Where the entry for `key` is, once it is there."""
    return _store() / hash_key(key)


def records() -> Iterator[Record]:
    """What every entry of the cache says of itself, for estimates; damaged ones are left out."""
    for target in sorted(_store().iterdir()):
        record = _record(target)
        if record is not None:
            yield record


def hash_key(key: Key) -> str:
    """The name of an entry: the hex sha256 of its canonical key."""
    return hashlib.sha256(canonical_json(dict(key))).hexdigest()


def versions(*distributions: str) -> str:
    """Installed versions of the libraries that shape an entry's content, for its key."""
    found = {name: installed_version(name) for name in distributions}
    return " ".join(f"{name}={version}" for name, version in found.items() if version is not None)


def _store() -> Path:
    return state_dir("cache", "optimize")


def _record(target: Path) -> Record | None:
    try:
        return TypeAdapter(Record).validate_json((target / LIST_NAME).read_bytes())
    except (OSError, ValidationError):
        return None


def _is_whole(target: Path) -> bool:
    record = _record(target)
    if record is None:
        return False
    try:
        return {path.name for path in target.iterdir()} == {LIST_NAME, *record.files} and all(
            sha256_file(resolve_inside(target, name)) == sha256
            for name, sha256 in record.files.items()
        )
    except (OSError, MlctlError):
        return False
