"""A store of finished directories by content hash, for work that is dear to repeat.

An entry lists its files with their sha256, the key that it was made for, and the
seconds it took. It appears only when complete; one that does not match its list is
built again, and two processes never build the same one at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from bundle.clock import Clock
from bundle.errors import MlctlError
from bundle.files import (
    exclusive,
    replace_directory,
    scratch_directory,
    sha256_file,
    write_atomic,
)
from bundle.manifest import canonical_json
from bundle.paths import resolve_inside

LIST_NAME = "entry.json"

Scalar = str | int | float | bool | None
Key = Mapping[str, Scalar]


@dataclass(frozen=True, slots=True)
class Entry:
    """A finished directory; `reused` if it was there before."""

    root: Path
    reused: bool


@dataclass(frozen=True, slots=True)
class EntryRecord:
    """What an entry says of itself; `files` maps names to hex sha256."""

    key: dict[str, Scalar]
    files: dict[str, str]
    seconds: float


def fetch_or_build(store: Path, key: Key, build: Callable[[Path], None], clock: Clock) -> Entry:
    """The entry for `key` in `store`; if none is whole, `build` fills an empty directory.

    What `build` raises passes through and leaves nothing behind. A process that finds
    another one building the same entry waits for it.
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
    """The name of an entry: the hex sha256 of its canonical key."""
    return hashlib.sha256(canonical_json(dict(key))).hexdigest()


def read_record(target: Path) -> EntryRecord | None:
    """What the entry at `target` says of itself; None if there is none or it is damaged."""
    try:
        return TypeAdapter(EntryRecord).validate_json((target / LIST_NAME).read_bytes())
    except (OSError, ValidationError):
        return None


def is_whole(target: Path) -> bool:
    """Whether the entry at `target` holds exactly the files it lists, unaltered."""
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
