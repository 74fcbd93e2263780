"""Finished work by content hash, so that a killed or repeated run resumes."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path

from mlctl.core import entries
from mlctl.core.clock import SystemClock
from mlctl.core.entries import Entry, Key, hash_key
from mlctl.core.home import state_dir
from mlctl.core.packages import installed_version


def fetch_or_build(key: Key, build: Callable[[Path], None], *, fresh: bool = False) -> Entry:
    """Return the entry for `key`, built again if `fresh`: `core.entries.fetch_or_build`."""
    if fresh:
        shutil.rmtree(_store() / hash_key(key), ignore_errors=True)
    return entries.fetch_or_build(_store(), key, build, SystemClock())


def is_cached(key: Key) -> bool:
    """Return whether `fetch_or_build` would have nothing to build."""
    return entries.is_whole(_store() / hash_key(key))


@functools.cache  # the files of all packages are read for each
def versions(*distributions: str) -> str:
    """Return the installed versions of libraries that shape an entry's content, for its key."""
    found = {name: installed_version(name) for name in distributions}
    return " ".join(f"{name}={version}" for name, version in found.items() if version is not None)


def _store() -> Path:
    return state_dir("cache", "optimize")
