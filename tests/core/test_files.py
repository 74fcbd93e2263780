import hashlib
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mlctl.core.files import (
    exclusive,
    replace_directory,
    scratch_directory,
    settle,
    sha256_file,
    write_atomic,
)


def test_sha256_file__large_file__is_read_in_pieces(tmp_path: Path) -> None:
    content = os.urandom((1 << 20) + 17)
    path = tmp_path / "file"
    path.write_bytes(content)
    assert sha256_file(path) == hashlib.sha256(content).hexdigest()


def test_sha256_file__link__is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic"):
        sha256_file(tmp_path / "link")


def test_atomic_write__file_exists__replaces_it_and_sets_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    write_atomic(path, b"new", mode=0o600)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_write_atomic__fails__leaves_the_old_content_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def no_space(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_scratch__end_of_the_block__is_removed_unless_renamed(tmp_path: Path) -> None:
    with scratch_directory(tmp_path) as first:
        (first / "file").write_bytes(b"x")
    assert list(tmp_path.iterdir()) == []
    with scratch_directory(tmp_path) as second:
        second.rename(tmp_path / "kept")
    assert [entry.name for entry in tmp_path.iterdir()] == ["kept"]


@pytest.mark.slow
def test_scratch__process_was_killed__is_swept_later(
    tmp_path: Path,
) -> None:
    code = (
        "import os, pathlib, sys\n"
        "from mlctl.core.files import scratch_directory\n"
        "with scratch_directory(pathlib.Path(sys.argv[1])):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    (orphan,) = tmp_path.iterdir()
    with scratch_directory(tmp_path) as mine, scratch_directory(tmp_path) as other:
        assert not orphan.exists()
        assert mine.exists()
        assert other.exists()


def finished(parent: Path, number: int) -> Path:
    directory = parent / f"finished-{number}"
    directory.mkdir()
    (directory / "value").write_text("42")
    return directory


def is_right(directory: Path) -> bool:
    return (directory / "value").is_file() and (directory / "value").read_text() == "42"


def test_exclusive__lock_is_held__the_second_waits(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with exclusive(tmp_path / "lock"):
            order.append("second")

    with ThreadPoolExecutor(1) as pool:
        with exclusive(tmp_path / "lock"):
            waiting = pool.submit(second)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.05)
            order.append("first")
        waiting.result(timeout=30)
    assert order == ["first", "second"]


def test_settle__many_at_once__all_succeed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    directories = [finished(tmp_path, number) for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda directory: settle(directory, target, is_right), directories))
    assert is_right(target)
    assert sum(directory.exists() for directory in directories) == 15


@pytest.mark.parametrize("damage", ["altered", "file", "link"])
def test_settle__target_is_damaged__replaces_it(tmp_path: Path, damage: str) -> None:
    target, elsewhere = tmp_path / "target", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "value").write_text("43")
    match damage:
        case "altered":
            elsewhere.rename(target)
        case "file":
            target.write_text("42")
        case _:
            target.symlink_to(elsewhere)
    settle(finished(tmp_path, 0), target, is_right)
    assert is_right(target)
    assert not target.is_symlink()
    assert damage != "link" or (elsewhere / "value").read_text() == "43"


def test_replace_directory__name_is_free__takes_it(tmp_path: Path) -> None:
    replace_directory(finished(tmp_path, 0), tmp_path / "target")
    assert is_right(tmp_path / "target")
