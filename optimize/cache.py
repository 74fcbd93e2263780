"""Finished work by content hash, so that a killed or repeated run goes on where it was.

An entry is a directory that lists its files with their sha256. It appears under its
key only when complete; one that does not match its list is built again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bundle.errors import MlctlError
from bundle.files import sha256_file, write_atomic
from bundle.home import state_dir
from bundle.manifest import canonical_json
from bundle.packages import installed_version
from bundle.paths import resolve_inside

LIST_NAME = "entry.json"

Key = Mapping[str, str | int | None]


@dataclass(frozen=True, slots=True)
class Entry:
    """A finished directory; `reused` if it was there before."""

    root: Path
    reused: bool


def fetch_or_build(key: Key, build: Callable[[Path], None]) -> Entry:
    """The entry for `key`; if there is none that is whole, `build` fills an empty directory.

    What `build` raises passes through and leaves nothing behind.
    """
    store = state_dir("cache", "optimize")
    target = store / hash_key(key)
    if _is_whole(target):
        return Entry(target, reused=True)
    scratch = Path(tempfile.mkdtemp(dir=store, prefix="."))
    try:
        build(scratch)
        listing = {path.name: sha256_file(path) for path in sorted(scratch.iterdir())}
        write_atomic(scratch / LIST_NAME, canonical_json(listing))
        shutil.rmtree(target, ignore_errors=True)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Entry(target, reused=False)


def hash_key(key: Key) -> str:
    """The name of an entry: the hex sha256 of its canonical key."""
    return hashlib.sha256(canonical_json(dict(key))).hexdigest()


def versions(*distributions: str) -> str:
    """Installed versions of the libraries that shape an entry's content, for its key."""
    found = {name: installed_version(name) for name in distributions}
    return " ".join(f"{name}={version}" for name, version in found.items() if version is not None)


def _is_whole(target: Path) -> bool:
    try:
        listing = json.loads((target / LIST_NAME).read_bytes())
        return {path.name for path in target.iterdir()} == {LIST_NAME, *listing} and all(
            sha256_file(resolve_inside(target, name)) == sha256 for name, sha256 in listing.items()
        )
    except (OSError, ValueError, TypeError, AttributeError, MlctlError):
        return False
