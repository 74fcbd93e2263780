from __future__ import annotations

import asyncio
import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.observability import access_log as accesslog
from mlctl.services.online.observability.access_log import (
    AccessLog,
    AppendedFile,
    StandardOutput,
    open_output,
)
from mlctl.services.online.observability.calls import RequestRecord
from tests.services.online.observability.calls import TRACE, done, seen


class Memory:
    """An output that keeps what it was given; with `full` it fails as a full disk does."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.full = False

    def write(self, lines: bytes) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        self.pieces.append(lines)

    def close(self) -> None:
        """Nothing to close."""


def logged() -> tuple[AccessLog, Memory]:
    memory = Memory()
    return AccessLog(memory, "tiny", "d" * 64), memory


def lines(memory: Memory) -> list[dict[str, Any]]:
    return [json.loads(line) for line in b"".join(memory.pieces).splitlines()]


def put(log: AccessLog, record: RequestRecord | None = None) -> None:
    """Log a request; an answered one by default."""
    log.ended(record or done())


def test_access_log__requests__are_one_json_line_each() -> None:
    log, memory = logged()
    request = seen()
    request.bytes_in = 32
    put(log, done(request))
    put(log, done(seen(protocol="grpc", traceparent=None), "queue_full"))
    named = seen(protocol="predict")
    named.client = "shop"
    put(log, done(named, "gone"))
    assert not memory.pieces  # nothing is written on the path of a request
    log.flush()
    assert len(memory.pieces) == 1
    first, second, third = lines(memory)
    assert first == {
        "time": "2023-11-14T22:13:20.500Z", "protocol": "http", "model": "tiny",
        "digest": "d" * 64, "status": 200, "code": "ok", "request_id": "r1", "trace_id": TRACE,
        "client": None, "rows": 2, "batch_rows": 8, "bytes_in": 32, "bytes_out": 64,
        "total_ms": 20.0, "queue_ms": 2.0, "infer_ms": 3.0,
    }  # fmt: skip
    assert (second["status"], second["code"]) == ("RESOURCE_EXHAUSTED", "queue_full")
    assert second["trace_id"] is None
    assert third["client"] == "shop"
    assert "queue_ms" not in second
    assert (third["status"], third["code"]) == (499, "gone")


def test_access_log__fields_of_the_request_before__are_not_those_of_the_next() -> None:
    """Lines share the text of equal fields: each field that differs makes a new one."""
    log, memory = logged()
    ids = [b"r0", b"r0-1", b'r"2']
    requests = [seen(name) for name in ids] + [seen(protocol="grpc"), seen(traceparent=b"00-1-1")]
    for number, request in enumerate(requests):
        request.bytes_in = 30 + number
        put(log, done(request, at=1_700_000_000.5 + number // 2))
    last = done(at=1_700_000_003.0)
    last.rows, last.batch_rows, last.queue = 3, 7, 0.5
    put(log, last)
    log.flush()
    found = lines(memory)
    assert [line["request_id"] for line in found] == ["r0", "r0-1", 'r"2', "r1", "r1", "r1"]
    assert [line["time"][17:19] for line in found] == ["20", "20", "21", "21", "22", "23"]
    assert [line["bytes_in"] for line in found] == [30, 31, 32, 33, 34, None]
    assert [line["status"] for line in found] == [200, 200, 200, "OK", 200, 200]
    assert [line["trace_id"] for line in found] == [TRACE, TRACE, TRACE, TRACE, None, TRACE]
    assert (found[-1]["rows"], found[-1]["batch_rows"], found[-1]["queue_ms"]) == (3, 7, 500)


@given(st.binary(max_size=60))
def test_access_log__any_request_id__stays_in_one_line(request_id: bytes) -> None:
    log, memory = logged()
    put(log, done(seen(request_id)))
    put(log, done(seen(request_id), "gone"))
    log.flush()
    assert b"".join(memory.pieces).count(b"\n") == 2
    assert [line["request_id"] for line in lines(memory)] == [request_id.decode("latin-1")] * 2


def _traceparent(version: str = "00", trace: str = TRACE, rest: str = "") -> bytes:
    return f"{version}-{trace}-{'4a' * 8}-01{rest}".encode()


# Other ids are replaced before they get here.
VISIBLE = st.characters(min_codepoint=0x21, max_codepoint=0x7E)
IDS = st.one_of(
    st.sampled_from([b"r1", b"r-2"]), st.text(VISIBLE, min_size=1, max_size=8).map(str.encode)
)
TRACES = st.sampled_from(
    [
        *[None, b"", b"junk", _traceparent()[:-1], _traceparent(trace="0" * 32)],
        *[_traceparent(), _traceparent("01", rest="-more"), _traceparent(trace="5b" * 16)],
    ]
)
ANSWERS = st.tuples(
    st.sampled_from(["http", "grpc"]),
    st.sampled_from([0.0, 0.001]),
    st.integers(1, 3),
    IDS,
    TRACES,
    st.sampled_from([0.002, 0.5]),
)


@given(st.lists(ANSWERS, min_size=1, max_size=6), st.booleans())
def test_access_log__answers_of_a_tick__have_the_lines_of_their_records(
    answers: list[Any], traced: bool
) -> None:
    together, many = logged()
    alone, one = logged()

    async def answer_all() -> None:
        for protocol, queue, rows, request_id, sent, seconds in answers:
            trace = _traceparent() if traced else sent
            shared = protocol, "ok", None, queue, 0.003, 8
            client = "shop" if rows == 1 else ""
            answer = shared, rows, request_id, trace, client, 1.0, 1.0 + seconds, 32, 64
            together.answered(answer)
            request = seen(request_id, protocol=protocol, traceparent=trace)
            request.client = client
            request.bytes_in, request.rows, request.batch_rows = 32, rows, 8
            request.bytes_out, request.queue, request.infer = 64, queue, 0.003
            request.code, request.seconds, request.at = "ok", seconds, 0.0
            alone.ended(request)
        assert not many.pieces
        await asyncio.sleep(0)  # a tick

    asyncio.run(answer_all())
    together.flush()
    alone.flush()
    found, wanted = lines(many), lines(one)
    for line in (*found, *wanted):
        del line["time"]
    assert found == wanted


def test_access_log__too_many_lines_or_a_full_disk__are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accesslog, "MAX_WAITING", 3)
    log, memory = logged()
    for _ in range(5):
        put(log)
    assert log.dropped == 2
    memory.full = True
    with pytest.raises(OSError, match="No space"):
        log.flush()
    assert log.dropped == 5
    memory.full = False
    put(log)
    log.flush()
    assert len(lines(memory)) == 1


def test_access_log__file_was_moved__is_created_again(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_bytes(b"before\n")
    file = AppendedFile(path)
    file.write(b"one\n")
    path.rename(tmp_path / "access.log.1")
    file.write(b"two\n")
    file.close()
    assert (tmp_path / "access.log.1").read_bytes() == b"before\none\n"
    assert path.read_bytes() == b"two\n"


def test_access_log__disk_was_full__next_line_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    file = AppendedFile(path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            file.write(b"first\nsecond\n")
        with pytest.raises(OSError, match="too large"):
            file.write(b"third\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    file.write(b"fourth\n")
    file.write(b"fifth\n")
    file.close()
    assert path.read_bytes().splitlines() == [b"first", b"se", b"fourth", b"fifth"]


def test_access_log__two_workers__share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    first, second = AppendedFile(path), AppendedFile(path)
    for file in (first, second, first):
        file.write(b"line\n")
    path.write_bytes(b"")  # truncated in place, as copytruncate does
    second.write(b"after\n")
    first.close()
    second.close()
    assert path.read_bytes() == b"after\n"


def test_open_output__standard_output_or_missing_folder__works_or_fails(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    StandardOutput(writing).write(b"x" * 1000)
    assert os.read(reading, 2000) == b"x" * 1000
    os.close(reading)
    os.close(writing)
    with pytest.raises(MlctlError, match="MLCTL_ACCESS_LOG") as caught:
        open_output(str(tmp_path / "no" / "such" / "log"))
    assert caught.value.code is ErrorCode.INVALID_INPUT
