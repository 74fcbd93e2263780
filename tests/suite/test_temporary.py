"""Where temporary files of a run are, and when they are removed."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.suite import temporary

LEAVES_A_FILE = """
import os, pathlib, tempfile

def test_one(tmp_path):
    folder = pathlib.Path(tempfile.mkdtemp())
    assert folder.parent == pathlib.Path(os.environ["TMPDIR"])
    assert folder.parent in tmp_path.parents
    {result}
"""


def run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, result: str
) -> tuple[pytest.RunResult, list[Path]]:
    """Return the result of a run, and what it left in the parent folder."""
    parent = pytester.mkdir("parent")
    monkeypatch.setattr(temporary, "parent_folder", lambda: parent)
    pytester.makepyfile(test_one=LEAVES_A_FILE.format(result=result))
    monkeypatch.delenv("PYTEST_DEBUG_TEMPROOT")  # pytester sets it
    before = os.environ["TMPDIR"]
    found = pytester.runpytest_inprocess("-p", "tests.suite.temporary")
    assert os.environ["TMPDIR"] == before
    return found, list(parent.iterdir())


def test_temporary__run_passes__leaves_nothing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, left = run(pytester, monkeypatch, "pass")
    result.assert_outcomes(passed=1)
    assert left == []


def test_temporary__multiprocessing_has_a_folder__is_removed_after_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its finalizer runs when the process ends, and must find the folder."""
    at_exit: dict[int, Callable[[], object]] = {}

    def finalize(_: None, call: Any, args: tuple[Any, ...], exitpriority: int) -> None:
        at_exit[exitpriority] = partial(call, *args)

    monkeypatch.setattr("multiprocessing.util.Finalize", finalize)
    result, (folder,) = run(pytester, monkeypatch, "(folder.parent / 'pymp-1').mkdir()")
    result.stdout.no_fnmatch_line("*kept for a day*")
    assert (folder / "pymp-1").is_dir()
    ((priority, remove),) = at_exit.items()
    assert priority < -100, "multiprocessing's own is removed first"
    remove()
    assert not folder.exists()


def test_temporary__test_fails__folder_is_kept_and_named(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, left = run(pytester, monkeypatch, "raise AssertionError")
    (folder,) = left
    result.stdout.fnmatch_lines([f"*kept for a day: {folder}"])


@pytest.mark.parametrize("memory", ["small", "absent"])
def test_parent_folder__memory_is_small_or_absent__is_the_usual_one(
    memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary, "_MEMORY", tmp_path / "none" if memory == "absent" else tmp_path)
    monkeypatch.setattr(temporary, "MIN_FREE_BYTES", 1 << 60)
    monkeypatch.setattr("tempfile.tempdir", "/usual")
    assert temporary.parent_folder() == Path("/usual")
