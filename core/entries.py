"""A cache of finished directories by content hash, for expensive work.

An entry records its files with their sha256, its key, and the seconds it took. It appears only when
complete; an entry that does not match its record is built again. Two processes never build the same
entry at the same time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from mlctl.core.canonical import canonical_json
from mlctl.core.clock import Clock
from mlctl.core.errors import MlctlError
from mlctl.core.files import (
    exclusive,
    replace_directory,
    scratch_directory,
    sha256_file,
    write_atomic,
)
from mlctl.core.paths import resolve_inside

LIST_NAME = "entry.json"

Scalar = str | int | float | bool | None
Key = Mapping[str, Scalar]


@dataclass(frozen=True, slots=True)
class Entry:
    """A finished directory; `reused` if it was in the cache."""

    root: Path
    reused: bool


@dataclass(frozen=True, slots=True)
class EntryRecord:
    """The record in an entry; `files` maps names to hex sha256."""

    key: dict[str, Scalar]
    files: dict[str, str]
    seconds: float


def fetch_or_build(store: Path, key: Key, build: Callable[[Path], None], clock: Clock) -> Entry:
    """Return the intact entry for `key` in `store`, or let `build` fill an empty directory.

    Exceptions of `build` pass through and leave nothing behind. If another process is building the
    same entry, wait for it.
    """
    target = store / hash_key(key)
    with exclusive(store / f".{target.name}.lock"):
        if is_whole(target):
            return Entry(target, reused=True)
        with scratch_directory(store) as scratch:
            start = clock.monotonic()
            build(scratch)
            seconds = round(clock.monotonic() - start, 3)
            files = {path.name: sha256_file(path) for path in sorted(scratch.iterdir())}
            record = EntryRecord(dict(key), files, seconds)
            write_atomic(scratch / LIST_NAME, canonical_json(asdict(record)))
            replace_directory(scratch, target)
    return Entry(target, reused=False)


def hash_key(key: Key) -> str:
    """Return the name of an entry: the hex sha256 of its canonical key."""
    return hashlib.sha256(canonical_json(dict(key))).hexdigest()


def read_record(target: Path) -> EntryRecord | None:
    """Read the record of the entry at `target`; None if it is missing or damaged."""
    try:
        return TypeAdapter(EntryRecord).validate_json((target / LIST_NAME).read_bytes())
    except (OSError, ValidationError):
        return None


def is_whole(target: Path) -> bool:
    """Whether the entry at `target` has exactly the files of its record, unaltered."""
    record = read_record(target)
    if record is None:
        return False
    try:
        return {path.name for path in target.iterdir()} == {LIST_NAME, *record.files} and all(
            sha256_file(resolve_inside(target, name)) == sha256
            for name, sha256 in record.files.items()
        )
    except (OSError, MlctlError):
        return False
