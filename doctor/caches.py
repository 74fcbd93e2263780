"""The caches under `$MLCTL_HOME/cache`: their sizes, and removal of entries that were not used.

Every entry can be made again from the registry and the data, so removing one costs only time.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mlctl.core.files import exclusive
from mlctl.core.home import home_path

CACHES = {
    "optimize": "finished steps of `mlctl optimize`",
    "sources": "models downloaded from the registry",
    "transforms": "copies of your transforms",
    "tensorrt/engines": "TensorRT engines",
    "tensorrt/timing": "TensorRT's timings of kernels",
}


@dataclass(frozen=True, slots=True)
class CacheSize:
    """One cache: its number of entries, and their size in bytes."""

    name: str
    content: str
    entries: int
    size_bytes: int


def cache_sizes() -> tuple[CacheSize, ...]:
    """Return the size of every cache, also of empty ones."""
    return tuple(
        CacheSize(name, content, len(entries), sum(map(_bytes, entries)))
        for name, content in CACHES.items()
        for entries in [list(_entries(name))]
    )


def prune(unused_seconds: float, now: float) -> tuple[CacheSize, ...]:
    """Remove the entries last used `unused_seconds` before `now` or earlier; return their sizes.

    An entry counts as used when one of its files was written or read. File systems may record
    reads only once a day. An entry that another process is writing is waited for.
    """
    return tuple(_prune_cache(name, now - unused_seconds) for name in CACHES)


def _prune_cache(name: str, before: float) -> CacheSize:
    count = freed = 0
    for path in _entries(name):
        with exclusive(path.parent / f".{path.name}.lock"):
            if not path.exists() or _last_use(path) > before:
                continue
            freed += _bytes(path)
            count += 1
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    return CacheSize(name, CACHES[name], count, freed)


def _entries(name: str) -> Iterator[Path]:
    store = home_path() / "cache" / name
    if store.is_dir():
        yield from (path for path in sorted(store.iterdir()) if not path.name.startswith("."))


def _files(entry: Path) -> Iterator[Path]:
    if entry.is_dir():
        yield from (path for path in entry.rglob("*") if path.is_file())
    else:
        yield entry


def _bytes(entry: Path) -> int:
    return sum(file.stat().st_size for file in _files(entry))


def _last_use(entry: Path) -> float:
    """Return when a file of the entry was last written or read, in seconds since 1970."""
    # The entry itself counts for its writes: listing a folder is no use of it.
    states = [file.stat() for file in _files(entry)]
    return max([entry.stat().st_mtime, *(max(each.st_mtime, each.st_atime) for each in states)])
