import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from bundle.files import scratch_directory, sha256_file, write_atomic


def test_sha256_reads_large_files_in_pieces(tmp_path: Path) -> None:
    content = os.urandom((1 << 20) + 17)
    path = tmp_path / "file"
    path.write_bytes(content)
    assert sha256_file(path) == hashlib.sha256(content).hexdigest()


def test_sha256_does_not_follow_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic"):
        sha256_file(tmp_path / "link")


def test_an_atomic_write_replaces_and_sets_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    write_atomic(path, b"new", mode=0o600)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_failed_write_leaves_the_old_content_and_no_rubbish(
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


def test_a_scratch_directory_goes_with_its_block_unless_renamed(tmp_path: Path) -> None:
    with scratch_directory(tmp_path) as first:
        (first / "file").write_bytes(b"x")
    assert list(tmp_path.iterdir()) == []
    with scratch_directory(tmp_path) as second:
        second.rename(tmp_path / "kept")
    assert [entry.name for entry in tmp_path.iterdir()] == ["kept"]


def test_scratch_of_a_killed_process_is_swept_and_that_of_a_running_one_is_not(
    tmp_path: Path,
) -> None:
    code = (
        "import os, pathlib, sys\n"
        "from bundle.files import scratch_directory\n"
        "with scratch_directory(pathlib.Path(sys.argv[1])):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    (orphan,) = tmp_path.iterdir()
    with scratch_directory(tmp_path) as mine, scratch_directory(tmp_path) as other:
        assert not orphan.exists()
        assert mine.exists()
        assert other.exists()
