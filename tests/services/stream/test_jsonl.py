"""Files and pipes of lines: the contract, kills between all steps of a commit, rotated files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundle.errors import ErrorCode, MlctlError
from services.stream.base import Commit, Guarantee, LinkRequest, Outgoing, Place
from services.stream.transports import jsonl, line_files
from services.stream.transports.jsonl import LinesLink
from services.stream.transports.line_ledger import read_entry
from services.stream.transports.lines import Cutter, from_line, to_line
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


class TestJsonl(TransportContract):
    @pytest.fixture
    def broker(self, tmp_path: Path) -> Broker:
        return Broker(
            lambda name: Place.parse(f"file://{tmp_path / name}.jsonl?headers=yes"),
            Guarantee.EXACTLY_ONCE,
            takes_over=False,
            shares=False,
        )


@given(
    st.binary(max_size=40),
    st.none() | st.binary(max_size=8),
    st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3),
)
def test_a_whole_line_says_everything(
    value: bytes, key: bytes | None, headers: list[tuple[str, bytes]]
) -> None:
    try:
        "".join(name for name, _ in headers).encode()
    except UnicodeEncodeError:
        return
    line = to_line(Outgoing(value, key, tuple(headers)), whole=True)
    assert line.count(b"\n") == 1
    assert from_line(line[:-1]) == (value, key, tuple(headers))
    plain = to_line(Outgoing(value, key), whole=False)
    assert plain.count(b"\n") == 1
    assert from_line(plain[:-1]).value == value


def test_what_only_looks_like_an_envelope_is_a_value() -> None:
    for line in (b'{"mlctl":1}', b'{"mlctl":{},"value":{"base64":"?"}}', b'{"mlctl":{'):
        assert from_line(line).value == line


def _link(folder: Path, options: str = "") -> LinesLink:
    def place(name: str) -> Place:
        return Place.parse(f"file://{folder / name}.jsonl{options if name == 'in' else ''}")

    return LinesLink(LinkRequest(place("in"), "g", place("out"), place("dead")))


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.exists() else []


def _work(folder: Path) -> None:
    """Answer all but each fifth message, in batches, to the end of the file."""
    with _link(folder) as link:
        while found := link.poll(7, 0.0):
            dead = [m for m in found if int(m.value) % 5 == 0]
            good = [m for m in found if int(m.value) % 5]
            link.commit(Commit(found, answered(good), [Outgoing(m.value) for m in dead]))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_at(step: int, torn: float) -> None:
    """Be killed at the `step`-th write: before it, or after the share `torn` of its bytes."""
    left = [step]
    write, pwrite = os.write, os.pwrite

    def counted() -> bool:
        left[0] -= 1
        return left[0] == 0

    def append(file: int, content: memoryview) -> int:
        if counted():
            write(file, content[: int(len(content) * torn)])
            _die()
        return write(file, content)

    def enter(file: int, content: bytes, place: int) -> int:
        if counted():
            pwrite(file, content[: int(len(content) * torn)], place)
            _die()
        return pwrite(file, content, place)

    vars(os)["write"] = append
    vars(os)["pwrite"] = enter


def test_a_kill_anywhere_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    wanted = list(range(28))
    (tmp_path / "in.jsonl").write_bytes(b"".join(b"%d\n" % n for n in wanted))
    kills = 0
    for step in range(1, 11):
        for torn in (0.0, 0.4, 1.0):
            for name in ("out.jsonl", "dead.jsonl", "in.jsonl.g.ledger"):
                (tmp_path / name).unlink(missing_ok=True)
            for each in (step, 3):  # killed again while it mends
                child = os.fork()
                if child == 0:
                    _die_at(each, torn)
                    _work(tmp_path)
                    os._exit(0)
                _pid, status = os.waitpid(child, 0)
                kills += os.WIFSIGNALED(status)
            _work(tmp_path)
            answers = [int(line) for line in _lines(tmp_path / "out.jsonl")]
            dead = [int(from_line(line).value) for line in _lines(tmp_path / "dead.jsonl")]
            assert answers == [n for n in wanted if n % 5]
            assert dead == [n for n in wanted if n % 5 == 0]
    assert kills > 40


def test_a_write_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"1\n2\n")
    with _link(tmp_path) as link:
        found = take(link, 2)
        batch = Commit(found, answered(found[:1]), [Outgoing(b"2")])
        with monkeypatch.context() as patch:
            append = line_files.Output.append

            def fail(output: line_files.Output, content: bytes) -> None:
                if output.path.name == "dead.jsonl":
                    raise MlctlError(ErrorCode.DISK_FULL, "full")
                append(output, content)

            patch.setattr(line_files.Output, "append", fail)
            with pytest.raises(MlctlError, match="full"):
                link.commit(batch)
        assert _lines(tmp_path / "out.jsonl") == []
        link.commit(batch)
    assert _lines(tmp_path / "out.jsonl") == [b"1"]
    assert len(_lines(tmp_path / "dead.jsonl")) == 1


def test_a_full_disk_under_the_ledger_is_worth_another_try(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"1\n2\n")
    with _link(tmp_path) as link:
        first, second = take(link, 2)
        link.commit(Commit([first], answered([first])))
        ledger = link._ledger
        assert ledger is not None
        before, file = ledger.entry, os.dup(ledger._file)
        full = os.open("/dev/full", os.O_RDWR)
        os.dup2(full, ledger._file)
        for _ in range(2):
            with pytest.raises(MlctlError) as caught:
                link.commit(Commit([second], answered([second])))
            assert caught.value.code is ErrorCode.DISK_FULL
        # Both tries had the turn of the older entry: the newest one is still whole.
        os.pwrite(file, b"x" * 50, (ledger._number + 1) % 2 * (16 << 10))
        assert read_entry(tmp_path / "in.jsonl.g.ledger") == before
        os.dup2(file, ledger._file)
        os.close(file)
        os.close(full)
        link.commit(Commit([second], answered([second])))
    assert _lines(tmp_path / "out.jsonl") == [b"1", b"2"]


@pytest.mark.parametrize("at", ["in", "out"])
def test_an_option_that_is_none_is_told(tmp_path: Path, at: str) -> None:
    def place(name: str) -> Place:
        return Place.parse(f"file://{tmp_path / name}.jsonl{'?ledgr=x' if name == at else ''}")

    with pytest.raises(MlctlError, match="no option 'ledgr'") as caught:
        LinesLink(LinkRequest(place("in"), "g", place("out"))).__enter__()
    assert caught.value.code is ErrorCode.INVALID_INPUT


@given(st.lists(st.sampled_from([b"", b"\n", b"a", b"b\n", b"c\nd", b"\n\ne\n"])))
def test_lines_are_cut_anywhere(blocks: list[bytes]) -> None:
    cutter = Cutter()
    lines = [line for block in blocks for line in cutter.cut(block)]
    assert [*lines, cutter.rest()] == b"".join(blocks).split(b"\n")
    assert cutter.waiting == len(cutter.rest())


def test_a_long_line_is_not_copied_for_each_block() -> None:
    block, blocks = b"x" * 65_536, 1000
    cutter = Cutter()
    began = time.process_time()
    for _ in range(blocks):
        assert cutter.cut(block) == []
    # Copied for each block this is 32 GB, many seconds.
    assert time.process_time() - began < 2.0
    (line,) = cutter.cut(b"\n")
    assert len(line) == blocks * len(block)


def test_a_line_counts_once_it_has_ended(tmp_path: Path) -> None:
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
def test_a_rotated_file_is_told_or_read_anew(
    tmp_path: Path, change: Callable[[Path], None], *, running: bool
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"".join(b"old%d\n" % n for n in range(5)))
    with _link(tmp_path) as link:
        found = take(link, 5)
        link.commit(Commit(found, answered(found)))
        if running:
            change(path)
            with pytest.raises(MlctlError, match="was replaced or cut"):
                link.poll(10, 0.0)
    if not running:
        change(path)
        with pytest.raises(MlctlError, match="was replaced or cut"), _link(tmp_path):
            pass
    with _link(tmp_path, "?rotated=anew") as link:
        found = take(link, 2)
        assert values(found) == [b"new1", b"new2"]
        link.commit(Commit(found, answered(found)))
    with _link(tmp_path, "?rotated=anew") as link:
        assert [*link.poll(10, 0.0)] == []
    assert len(_lines(tmp_path / "out.jsonl")) == 7


def test_the_end_of_a_replaced_file_is_read_first(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"1\n")
    with _link(tmp_path, "?rotated=anew") as link:
        take(link, 1)
        with path.open("ab") as file:
            file.write(b"2\n3")
        path.rename(tmp_path / "old")
        path.write_bytes(b"4\n")
        found = take(link, 3)
        assert values(found) == [b"2", b"3", b"4"]
        assert len({(m.partition, m.offset) for m in found}) == 3


def test_what_comes_after_a_late_start_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"1\n2\n3")
    source = Place.parse(str(path))
    request = LinkRequest(source, "late", start="latest")
    with LinesLink(request) as link:
        assert [*link.poll(10, 0.0)] == []
    with path.open("ab") as file:
        file.write(b"\n4\n")
    with LinesLink(request) as link:
        assert values(take(link, 2)) == [b"3", b"4"]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").touch()
    with (
        _link(tmp_path),
        pytest.raises(MlctlError, match="another process reads") as caught,
        _link(tmp_path),
    ):
        pass
    assert caught.value.code is ErrorCode.JOB_RUNNING
    with _link(tmp_path):  # and whoever could not begin holds nothing
        pass


def test_a_foreign_line_after_a_kill_is_not_taken_away(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"".join(b"%d\n" % n for n in range(20)))
    child = os.fork()
    if child == 0:
        _die_at(5, 0.4)
        _work(tmp_path)
        os._exit(0)
    os.waitpid(child, 0)
    with (tmp_path / "out.jsonl").open("ab") as file:
        file.write(b"x" * 500 + b"\n")
    before = (tmp_path / "out.jsonl").read_bytes()
    with pytest.raises(MlctlError, match="by another program"), _link(tmp_path):
        pass
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_a_line_without_an_end_is_ended_first(tmp_path: Path) -> None:
    place = Place.parse(str(tmp_path / "rows.jsonl"))
    (tmp_path / "rows.jsonl").write_bytes(b"mine")
    send(place, numbered(0, 1))
    assert values(read(place)) == [b"mine", b"0"]


def test_pipes() -> None:
    program = (
        "from services.stream.base import *\n"
        "from services.stream.transports.jsonl import transport\n"
        "request = LinkRequest(Place.parse('-'), 'g', Place.parse('-'))\n"
        "with transport.open_link(request) as link:\n"
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


def test_a_ledger_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").touch()
    (tmp_path / "in.jsonl.g.ledger").write_text("x" * 40_000)
    with pytest.raises(MlctlError, match="is not a ledger"), _link(tmp_path):
        pass
    with pytest.raises(MlctlError, match="no file"):
        next(jsonl.transport.browse(Place.parse(str(tmp_path / "none"))))
