import os
from pathlib import Path

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.paths import check_relative, reject_link, resolve_inside

ESCAPES = [
    "", "/etc/passwd", "..", "../x", "a/../../x", "./x", "a//b", "a/", "a\\b", "a\x00b", "a\nb",
    "%2e%2e/x", "x;v=1", "C:x", "a/./b", "x" * 600, "a\x7f", "x" * 256, "ü" * 128, "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("name", ESCAPES)
def test_paths__name_leaves_the_folder__is_rejected(name: str) -> None:
    with pytest.raises(MlctlError, match="is rejected") as caught:
        check_relative(name)
    assert caught.value.code is ErrorCode.PATH_UNSAFE


@pytest.mark.parametrize("name", ["model.onnx", "a/b/c.bin", ".hidden", "ünïcode", "a b"])
def test_paths__plain_name__is_under_the_root(tmp_path: Path, name: str) -> None:
    assert resolve_inside(tmp_path, name) == tmp_path / name


def test_paths__symbolic_link_in_the_path__is_rejected(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(MlctlError, match="symbolic link"):
        resolve_inside(root, "link/file")


def test_paths__hard_link__is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    os.link(tmp_path / "a", tmp_path / "b")
    with pytest.raises(MlctlError, match="hard link"):
        reject_link(tmp_path / "b", "b")


def test_paths__special_file__is_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(MlctlError, match="neither a file nor a directory"):
        reject_link(tmp_path / "pipe", "pipe")


def test_paths__missing_file__is_no_link(tmp_path: Path) -> None:
    reject_link(tmp_path / "nothing", "nothing")
    (tmp_path / "file").touch()
    assert not resolve_inside(tmp_path, "file/below").exists()
    assert not (tmp_path / "nothing").exists()
