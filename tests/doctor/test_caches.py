"""Sizes of the caches, and the removal of what was not used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlctl.core.entries import fetch_or_build, is_whole
from mlctl.doctor.caches import CACHES, CacheSize, cache_sizes, prune
from tests.support.clock import ManualClock

NOW = 1_000_000.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MLCTL_HOME", str(tmp_path))
    return tmp_path


def write(path: Path, size: int, *, used: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    for each in (path, path.parent):
        os.utime(each, (used, used))


def sizes(caches: tuple[CacheSize, ...]) -> dict[str, tuple[int, int]]:
    return {each.name: (each.entries, each.size_bytes) for each in caches if each.entries}


@pytest.mark.usefixtures("home")
def test_cache_sizes__empty_home__are_zero() -> None:
    assert [each.name for each in cache_sizes()] == list(CACHES)
    assert sizes(cache_sizes()) == {}


def test_prune__old_and_new_entries__removes_the_old_ones(home: Path) -> None:
    write(home / "cache/optimize/old/model.onnx", 300, used=NOW - 100)
    write(home / "cache/optimize/new/model.onnx", 20, used=NOW - 5)
    write(home / "cache/tensorrt/engines/old/engine", 4, used=NOW - 100)
    write(home / "cache/tensorrt/timing/key", 1, used=NOW - 100)
    write(home / "journal.db", 7, used=0)
    assert sizes(cache_sizes()) == {
        "optimize": (2, 320), "tensorrt/engines": (1, 4), "tensorrt/timing": (1, 1)
    }  # fmt: skip
    assert sizes(prune(50, NOW)) == {
        "optimize": (1, 300), "tensorrt/engines": (1, 4), "tensorrt/timing": (1, 1)
    }  # fmt: skip
    assert sizes(cache_sizes()) == {"optimize": (1, 20)}
    assert (home / "journal.db").exists()


def test_prune__entry_written_long_ago_and_read_lately__stays(home: Path) -> None:
    file = home / "cache/sources/model/weights"
    write(file, 3, used=NOW - 100)
    os.utime(file, (NOW - 1, NOW - 100))
    assert sizes(prune(50, NOW)) == {}


def test_prune__all__entry_is_built_again(home: Path) -> None:
    store = home / "cache/optimize"
    store.mkdir(parents=True)

    def build(folder: Path) -> None:
        (folder / "model").write_text("weights")

    first = fetch_or_build(store, {"a": 1}, build, ManualClock(0.0))
    assert sizes(prune(0, first.root.stat().st_mtime + 3600)).keys() == {"optimize"}
    again = fetch_or_build(store, {"a": 1}, build, ManualClock(0.0))
    assert not again.reused
    assert is_whole(again.root)
