"""Temporary folders of processes that were killed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from services.batch.executors.scratch import PREFIX, Scratch, sweep

pytestmark = pytest.mark.slow

HOLD = """
import sys
from services.batch.executors.scratch import Scratch
scratch = Scratch()
(scratch.folder / "file").write_text("content")
print(scratch.folder, flush=True)
sys.stdin.read()
"""


def test_a_killed_processs_folder_is_removed_and_a_held_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    mine = Scratch()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert folder.parent == tmp_path
        assert folder.name.startswith(PREFIX)
        assert sweep() == 0
        assert (folder / "file").is_file()
        process.kill()
        process.wait()
        assert sweep() == 1
    assert list(tmp_path.iterdir()) == [mine.folder]
    mine.close()
    assert not list(tmp_path.iterdir())


def test_what_only_has_such_a_name_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"{PREFIX}file").write_text("not a folder")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "elsewhere")
    assert sweep() == 0
    assert (tmp_path / "elsewhere").is_dir()
