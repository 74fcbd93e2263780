from __future__ import annotations

import errno
from pathlib import Path

import pytest

from mlctl.core.errors import ErrorCode
from mlctl.core.files import check_writable
from mlctl.core.home import BENTO_HOME_VARIABLE, HOME_VARIABLE
from mlctl.core.os_errors import translate_os_error


@pytest.fixture(autouse=True)
def homes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, "/state")
    monkeypatch.setenv(BENTO_HOME_VARIABLE, "/bentos")


@pytest.mark.parametrize(
    ("number", "path", "message", "hint"),
    [
        (
            errno.EACCES,
            "/state/locks",
            "cannot access /state/locks: permission denied",
            "or set MLCTL_HOME to a folder that you can write to.",
        ),
        (
            errno.EROFS,
            "/bentos/bentos",
            "cannot access /bentos/bentos: read-only file system",
            "or set BENTOML_HOME to a folder",
        ),
        (
            errno.EPERM,
            "/data/my report.html",
            "cannot access /data/my report.html: operation not permitted",
            ", or use another path.",
        ),
        (
            errno.ENOTDIR,
            b"/state",
            "cannot access /state: not a directory",
            "Move it away, or set MLCTL_HOME",
        ),
    ],
)
def test_translate__an_inaccessible_path__names_it_and_the_remedy(
    number: int, path: str | bytes, message: str, hint: str
) -> None:
    found = translate_os_error(OSError(number, "said by the library", path))
    assert found is not None
    assert found.code is ErrorCode.PATH_INACCESSIBLE
    assert found.message == message
    assert hint in found.hint


def test_translate__a_file_at_its_size_limit__is_a_full_disk() -> None:
    found = translate_os_error(OSError(errno.EFBIG, "File too large"))
    assert found is not None
    assert found.code is ErrorCode.DISK_FULL
    assert "ulimit -f" in found.hint


def test_translate__a_path_that_does_not_exist__names_the_folder_that_stands_in_the_way(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "my folder"
    folder.mkdir()
    for path in (folder, folder / "locks" / "publish"):
        found = translate_os_error(PermissionError(errno.EACCES, "", str(path)))
        assert found is not None
        assert found.message == f"cannot access {path}: permission denied"
        assert f"`ls -ld '{folder}'`, or use another path." in found.hint


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/state/x"),
        ProcessLookupError(errno.ESRCH, "No such process"),
        PermissionError(errno.EPERM, "Operation not permitted"),
    ],
)
def test_translate__an_error_without_a_path_or_for_a_missing_file__is_left(error: OSError) -> None:
    assert translate_os_error(error) is None


def test_check_writable__a_new_and_an_old_file__leaves_both_as_they_are(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("kept")
    check_writable(old)
    check_writable(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert old.read_text() == "kept"


@pytest.mark.parametrize("name", ["folder", "file/below", "missing/below"])
def test_check_writable__what_cannot_be_written__names_the_path(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"\[Errno") as caught:
        check_writable(tmp_path / name)
    assert caught.value.filename == str(tmp_path / name)
