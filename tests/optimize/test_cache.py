from __future__ import annotations

from pathlib import Path

import pytest

from mlctl.core.entries import LIST_NAME, Key
from mlctl.core.home import state_dir
from mlctl.optimize.cache import fetch_or_build, is_cached

KEY: Key = {"kind": "test", "version": 1}


class Builder:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, directory: Path) -> None:
        self.calls += 1
        (directory / "value.txt").write_text("42")


def names() -> set[str]:
    return {path.name for path in state_dir("cache", "optimize").iterdir() if path.is_dir()}


def test_fetch_or_build__one_key__builds_once(home: Path) -> None:
    build = Builder()
    first = fetch_or_build(KEY, build)
    again = fetch_or_build(KEY, build)
    other = fetch_or_build({**KEY, "version": 2}, build)
    assert (first.reused, again.reused, other.reused) == (False, True, False)
    assert first.root == again.root
    assert home in first.root.parents
    assert build.calls == 2


def test_fetch_or_build__fresh__builds_again(home: Path) -> None:
    del home
    build = Builder()
    fetch_or_build(KEY, build)
    entry = fetch_or_build(KEY, build, fresh=True)
    assert not entry.reused
    assert build.calls == 2
    assert fetch_or_build(KEY, build).reused


@pytest.mark.parametrize("damage", ["alter", "remove", "add", "list", "empty", "shape"])
def test_fetch_or_build__a_damaged_entry__is_built_again(home: Path, damage: str) -> None:
    del home
    build = Builder()
    root = fetch_or_build(KEY, build).root
    match damage:
        case "alter":
            (root / "value.txt").write_text("43")
        case "remove":
            (root / "value.txt").unlink()
        case "add":
            (root / "other.txt").write_text("x")
        case "list":
            text = (root / LIST_NAME).read_text()
            (root / LIST_NAME).write_text(text.replace("value.txt", "../value.txt"))
        case "empty":
            (root / LIST_NAME).write_bytes(b"")
        case _:
            (root / LIST_NAME).write_text("[]")
    assert not is_cached(KEY)
    entry = fetch_or_build(KEY, build)
    assert not entry.reused
    assert (entry.root / "value.txt").read_text() == "42"
    assert build.calls == 2


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_fetch_or_build__a_failing_build__raises_and_leaves_nothing(
    home: Path, error: type[BaseException]
) -> None:
    del home

    def build(directory: Path) -> None:
        (directory / "half.txt").write_text("half")
        raise error

    with pytest.raises(error):
        fetch_or_build(KEY, build)
    assert names() == set()
