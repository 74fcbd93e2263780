"""Files and pipes of lines: the contract, kills between all steps of a commit, replaced files."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlctl.core import files
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.stream.base import (
    Commit,
    ConnectionRequest,
    Guarantee,
    Outgoing,
    StreamConnection,
    StreamUrl,
)
from mlctl.services.stream.transports import lines
from mlctl.services.stream.transports.bridge import connect
from mlctl.services.stream.transports.lines import FileConnection, LineReader, from_line, to_line
from tests.services.stream.contract import (
    Broker,
    TransportContract,
    answered,
    numbered,
    read,
    send,
    take,
    values,
)
from tests.support.forked import run_forked


class TestLines(TransportContract):
    @pytest.fixture
    def broker(self, tmp_path: Path) -> Broker:
        def create(name: str) -> StreamUrl:
            path = tmp_path / f"{name}.jsonl"
            path.touch()
            return StreamUrl.parse(f"file://{path}?headers=yes")

        return Broker(create, Guarantee.AT_LEAST_ONCE, takes_over=False, shares=False)


def test_file__source_or_folder_does_not_exist__is_an_error_with_a_command(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    for folder, command in ((tmp_path, f"touch '{tmp_path / 'in.jsonl'}'"), (missing, "mkdir -p")):
        with pytest.raises(MlctlError, match="there is no") as raised, _link(folder):
            pass
        assert raised.value.code is ErrorCode.NOT_FOUND
        assert command in raised.value.hint


@given(
    st.binary(max_size=40),
    st.none() | st.binary(max_size=8),
    st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3),
)
def test_lines__full_envelope__has_all_fields(
    value: bytes, key: bytes | None, headers: list[tuple[str, bytes]]
) -> None:
    try:
        "".join(name for name, _ in headers).encode()
    except UnicodeEncodeError:
        return
    line = to_line(Outgoing(value, key, tuple(headers)), envelope=True)
    assert line.count(b"\n") == 1
    assert from_line(line[:-1]) == (value, key, tuple(headers))
    plain = to_line(Outgoing(value, key), envelope=False)
    assert plain.count(b"\n") == 1
    assert from_line(plain[:-1]).value == value


def test_lines__object_that_resembles_an_envelope__is_a_value() -> None:
    for line in (b'{"mlctl":1}', b'{"mlctl":{},"value":{"base64":"?"}}', b'{"mlctl":{'):
        assert from_line(line).value == line


def _link(folder: Path) -> StreamConnection:
    def place(name: str) -> StreamUrl:
        return StreamUrl.parse(f"file://{folder / name}.jsonl")

    return connect(ConnectionRequest(place("in"), "g", place("out"), place("dead")))


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.exists() else []


def _work(folder: Path) -> None:
    """Answer all but each fifth message, in batches, to the end of the file."""
    with _link(folder) as link:
        while found := link.poll(7, 0.0):
            dead = [m for m in found if int(m.content) % 5 == 0]
            good = [m for m in found if int(m.content) % 5]
            link.commit(Commit(found, answered(good), [Outgoing(m.value) for m in dead]))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_at(step: int, torn: float) -> None:
    """Be killed at the `step`-th write: before it, or after the share `torn` of its bytes."""
    left = [step]
    write, replace = os.write, files.write_atomic

    def counted() -> bool:
        left[0] -= 1
        return left[0] == 0

    def append(file: int, content: memoryview) -> int:
        if counted():
            write(file, content[: int(len(content) * torn)])
            _die()
        return write(file, content)

    def enter(path: Path, content: bytes) -> None:
        if counted():
            _die()
        replace(path, content)
        if counted():
            _die()

    vars(os)["write"] = append
    vars(lines)["write_atomic"] = enter


def _work_until(folder: Path, step: int, torn: float) -> None:
    _die_at(step, torn)
    _work(folder)


@pytest.mark.slow
def test_kill__at_any_write__no_message_is_lost(tmp_path: Path) -> None:
    wanted = list(range(100, 128))
    (tmp_path / "in.jsonl").write_bytes(b"".join(b"%d\n" % n for n in wanted))
    kills = 0
    for step in range(1, 11):
        for torn in (0.0, 0.4, 1.0):
            for name in ("out.jsonl", "dead.jsonl", "in.jsonl.g.offset"):
                (tmp_path / name).unlink(missing_ok=True)
            for each in (step, 3):  # killed again while it goes on
                kills += os.WIFSIGNALED(run_forked(partial(_work_until, tmp_path, each, torn)))
            _work(tmp_path)
            # A line that a kill cut is there as it is, and its answer follows.
            answers = _lines(tmp_path / "out.jsonl")
            dead = [from_line(line).value for line in _lines(tmp_path / "dead.jsonl")]
            assert {*answers} >= {b"%d" % n for n in wanted if n % 5}
            assert {*dead} >= {b"%d" % n for n in wanted if n % 5 == 0}
            assert len(answers) <= 2 * 7 + len(wanted)
    assert kills > 40


def test_publish__disk_is_full__nothing_is_appended_and_it_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = StreamUrl.parse(str(tmp_path / "out.jsonl"))
    with lines.transport.open_producer(place) as producer:
        producer.publish([Outgoing(b"1")])
        with monkeypatch.context() as patch:
            write = os.write

            def fill(file: int, content: memoryview) -> int:
                if len(content) <= 10:
                    raise OSError(errno.ENOSPC, "full")
                return write(file, content[:10])

            patch.setattr(os, "write", fill)
            with pytest.raises(MlctlError) as caught:
                producer.publish([Outgoing(b"x" * 18)])
            assert caught.value.code is ErrorCode.DISK_FULL
        assert _lines(tmp_path / "out.jsonl") == [b"1"]
        producer.publish([Outgoing(b"2")])
    assert _lines(tmp_path / "out.jsonl") == [b"1", b"2"]


def test_position__disk_is_full__is_worth_another_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"1\n2\n")
    source = StreamUrl.parse(str(tmp_path / "in.jsonl"))

    def fill(*_given: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with FileConnection(ConnectionRequest(source, "g")) as reader:
        first, second = reader.poll(2, 0.0)
        reader.commit(Commit([first]))
        with monkeypatch.context() as patch:
            patch.setattr(lines, "write_atomic", fill)
            with pytest.raises(MlctlError) as caught:
                reader.commit(Commit([second]))
        assert caught.value.code is ErrorCode.DISK_FULL
        reader.commit(Commit([second]))
    with FileConnection(ConnectionRequest(source, "g")) as reader:
        assert reader.group_lag() == 0


@pytest.mark.parametrize("at", ["in", "out"])
def test_stream_url__unknown_option__is_rejected(tmp_path: Path, at: str) -> None:
    def place(name: str) -> StreamUrl:
        return StreamUrl.parse(f"file://{tmp_path / name}.jsonl{'?header=x' if name == at else ''}")

    with pytest.raises(MlctlError, match="no option 'header'") as caught:
        connect(ConnectionRequest(place("in"), "g", place("out"))).__enter__()
    assert caught.value.code is ErrorCode.INVALID_INPUT


@given(st.lists(st.sampled_from([b"", b"\n", b"a", b"b\n", b"c\nd", b"\n\ne\n"])))
def test_reader__blocks_end_anywhere__lines_and_offsets_are_those_of_the_whole(
    blocks: list[bytes],
) -> None:
    reader, whole = LineReader(-1), b"".join(blocks)
    for block in blocks:
        reader._split(block)
    reader._split(b"\n")
    found = [*reader._lines]
    assert [line for _, line in found] == [line for line in whole.split(b"\n") if line.strip()]
    assert all(whole[at : at + len(line)] == line for at, line in found)


def test_reader__long_line__is_not_copied_for_each_block() -> None:
    block, blocks = b"x" * 65_536, 1000
    reader = LineReader(-1)
    began = time.process_time()
    for _ in range(blocks):
        reader._split(block)
    # Copied for each block this is 32 GB, many seconds.
    assert time.process_time() - began < 2.0
    reader._split(b"\n")
    ((_, line),) = reader._lines
    assert len(line) == blocks * len(block)


def test_lines__unfinished_line__is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"a":1}\n\n  \n{"b"')
    with _link(tmp_path) as link:
        assert values(take(link, 1)) == [b'{"a":1}']
        assert [*link.poll(10, 0.0)] == []
        with path.open("ab") as file:
            file.write(b":2}\n")
        assert values(take(link, 1)) == [b'{"b":2}']


def _move(path: Path) -> None:
    path.rename(path.with_suffix(".old"))
    path.write_bytes(b"new1\nnew2\n")


def _cut(path: Path) -> None:
    os.truncate(path, 0)
    path.write_bytes(b"new1\nnew2\n")


@pytest.mark.parametrize("change", [_move, _cut])
@pytest.mark.parametrize("running", [True, False])
def test_file__replaced_or_cut__is_an_error_until_the_position_is_removed(
    tmp_path: Path, change: Callable[[Path], None], *, running: bool
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"".join(b"old%d\n" % n for n in range(5)))
    with _link(tmp_path) as link:
        found = take(link, 5)
        link.commit(Commit(found, answered(found)))
        if running:
            change(path)
            with pytest.raises(MlctlError, match="was replaced or truncated"):
                link.poll(10, 0.0)
    if not running:
        change(path)
    with pytest.raises(MlctlError, match="was replaced or truncated") as caught, _link(tmp_path):
        pass
    assert f"rm '{path}.g.offset'" in caught.value.hint
    Path(f"{path}.g.offset").unlink()
    with _link(tmp_path) as link:
        assert values(take(link, 2)) == [b"new1", b"new2"]


def test_kafka__messages_after_a_late_start__are_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"1\n2\n3")
    source = StreamUrl.parse(str(path))
    request = ConnectionRequest(source, "late", start="latest")
    with connect(request) as link:
        assert [*link.poll(10, 0.0)] == []
    with path.open("ab") as file:
        file.write(b"\n4\n")
    with connect(request) as link:
        assert values(take(link, 2)) == [b"3", b"4"]


def test_lines__second_process__is_rejected(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").touch()
    request = ConnectionRequest(StreamUrl.parse(str(tmp_path / "in.jsonl")), "g")
    for second, why in ((_link(tmp_path), "writes to"), (connect(request), "reads")):
        with (
            _link(tmp_path),
            pytest.raises(MlctlError, match=f"another process {why}") as caught,
            second,
        ):
            pass
        assert caught.value.code is ErrorCode.JOB_RUNNING
    with _link(tmp_path):  # A process that could not begin holds nothing.
        pass


def test_lines__output_with_an_unfinished_line__is_ended_first(tmp_path: Path) -> None:
    place = StreamUrl.parse(str(tmp_path / "rows.jsonl"))
    (tmp_path / "rows.jsonl").write_bytes(b"mine")
    send(place, numbered(0, 1))
    assert values(read(place)) == [b"mine", b"0"]


@pytest.mark.slow
def test_lines__pipes__carry_messages() -> None:
    program = (
        "from mlctl.services.stream.base import *\n"
        "from mlctl.services.stream.transports.bridge import connect\n"
        "request = ConnectionRequest(StreamUrl.parse('-'), 'g', StreamUrl.parse('-'))\n"
        "with connect(request) as link:\n"
        "    assert link.guarantee is Guarantee.AT_LEAST_ONCE\n"
        "    while not link.ended:\n"
        "        found = link.poll(2, 5.0)\n"
        "        link.commit(Commit(found, [Outgoing(m.value[::-1]) for m in found]))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        input=b"ab\n\ncd\nef\ngh",
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout == b"ba\ndc\nfe\nhg\n"


def test_position__another_file__is_rejected(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").touch()
    (tmp_path / "in.jsonl.g.offset").write_text("x" * 40)
    with pytest.raises(MlctlError, match="is not a position"), _link(tmp_path):
        pass
    with pytest.raises(MlctlError, match="no file"):
        next(lines.transport.browse(StreamUrl.parse(str(tmp_path / "none"))))


def test_exactly_once__files__are_rejected(tmp_path: Path) -> None:
    places = [StreamUrl.parse(str(tmp_path / name)) for name in ("in", "out")]
    with pytest.raises(MlctlError, match="files and pipes cannot") as caught:
        connect(ConnectionRequest(places[0], "g", places[1], exactly_once=True))
    assert caught.value.code is ErrorCode.INVALID_INPUT
