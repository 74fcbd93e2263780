from pathlib import Path

import pytest

from mlctl.bento.clients.languages import write_files
from mlctl.core.errors import ErrorCode, MlctlError


def test_write_files__new_folder__holds_them(tmp_path: Path) -> None:
    write_files(tmp_path / "out", {"a.txt": "ä", "b/c.bin": b"\0"})
    assert (tmp_path / "out/a.txt").read_bytes() == "ä".encode()
    assert (tmp_path / "out/b/c.bin").read_bytes() == b"\0"


def test_write_files__used_folder__needs_force(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("mine")
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(MlctlError, match="not an empty folder") as caught:
        write_files(tmp_path, {"a.txt": "new"})
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert (tmp_path / "a.txt").read_text() == "old"
    write_files(tmp_path, {"a.txt": "new"}, force=True)
    assert (tmp_path / "a.txt").read_text() == "new"
    assert (tmp_path / "own.txt").read_text() == "mine"


def test_write_files__path_outside_the_folder__is_rejected(tmp_path: Path) -> None:
    with pytest.raises(MlctlError) as caught:
        write_files(tmp_path / "out", {"../a.txt": ""})
    assert caught.value.code is ErrorCode.PATH_UNSAFE
    assert not (tmp_path / "a.txt").exists()
