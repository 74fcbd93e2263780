from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.drivers.local import logs
from mlctl.rollout.drivers.local.logs import Follower, LogLine


def write(directory: Path, role: str, text: str) -> None:
    with logs.path(directory, role).open("a") as file:
        file.write(text)


def test_rotate__open_writer__continues_in_the_new_file(tmp_path: Path) -> None:
    """It holds the file open as a Bento does, and nobody tells it anything."""
    log = logs.path(tmp_path, "blue/0")
    writer = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in range(5):
        os.write(writer, f"{number}\n".encode() * 50)
        logs.rotate(tmp_path, max_bytes=60, kept=2)
        assert log.stat().st_size == 0
    os.write(writer, b"last\n")
    os.close(writer)
    assert log.read_text() == "last\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "blue-0.log",
        "blue-0.log.1",
        "blue-0.log.2",
    ]
    assert set((tmp_path / "blue-0.log.1").read_text().split()) == {"4"}
    assert set((tmp_path / "blue-0.log.2").read_text().split()) == {"3"}


def test_rotate__small_log__is_kept(tmp_path: Path) -> None:
    write(tmp_path, "proxy", "hello\n")
    logs.rotate(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["proxy.log"]


def test_roles__logs_of_each_process__are_selected_by_prefix(tmp_path: Path) -> None:
    for role in ("blue/0", "blue/1", "green/0", "proxy"):
        write(tmp_path, role, "x\n")
    assert logs.roles(tmp_path) == ("blue/0", "blue/1", "green/0", "proxy")
    assert logs.roles(tmp_path, "blue") == ("blue/0", "blue/1")
    assert logs.roles(tmp_path, "blue/1") == ("blue/1",)
    assert logs.roles(tmp_path, "proxy") == ("proxy",)
    for unknown in ("daemon", "blue/7", "../proxy"):
        with pytest.raises(MlctlError) as caught:
            logs.roles(tmp_path, unknown)
        assert caught.value.code is ErrorCode.NOT_FOUND
        assert "blue/0, blue/1, green/0, proxy" in str(caught.value.hint)


def test_tail__after_a_rotation__includes_the_older_file(tmp_path: Path) -> None:
    write(tmp_path, "blue/0", "1\n2\n3\n")
    logs.rotate(tmp_path, max_bytes=1)
    write(tmp_path, "blue/0", "4\n5\n")
    assert [line.text for line in logs.tail(tmp_path, "blue/0", 3)] == ["3", "4", "5"]
    assert logs.tail(tmp_path, "blue/0", 0) == []


def test_follower__new_lines_and_rotation__yields_complete_lines(tmp_path: Path) -> None:
    write(tmp_path, "proxy", "before\n")
    follower = Follower(tmp_path, lambda: logs.roles(tmp_path))
    assert list(follower.read()) == []
    write(tmp_path, "proxy", "one\nhalf")
    write(tmp_path, "blue/0", "new\n")
    assert list(follower.read()) == [LogLine("blue/0", "new"), LogLine("proxy", "one")]
    write(tmp_path, "proxy", " done\n")
    assert list(follower.read()) == [LogLine("proxy", "half done")]
    logs.rotate(tmp_path, max_bytes=1)
    write(tmp_path, "proxy", "after\n")
    assert list(follower.read()) == [LogLine("proxy", "after")]
