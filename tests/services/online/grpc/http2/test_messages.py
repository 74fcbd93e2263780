from __future__ import annotations

import gzip
import random
import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.batching.admission import BusyError, Hold, Inflight
from mlctl.services.online.grpc.http2.messages import (
    Assembler,
    RawMessage,
    frame,
    unpack,
    unpack_apart,
)

MESSAGES = st.lists(st.binary(max_size=40), max_size=6)


def assembler(limit: int = 100, inflight: Inflight | None = None) -> Assembler:
    return Assembler(limit, Hold(inflight or Inflight(sys.maxsize)))


@given(MESSAGES, st.data())
def test_assembler__messages_cut_anywhere__come_out_whole(
    messages: list[bytes], data: st.DataObject
) -> None:
    whole = b"".join(map(frame, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    inflight = Inflight(sys.maxsize)
    into = assembler(inflight=inflight)
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        into.feed(whole[start:end])
    assert into.is_whole
    assert [message.data for message in into.messages] == messages
    while into.messages:
        assert inflight.used > 0
        into.take()
    assert inflight.used == 0


@given(st.binary(max_size=300))
def test_assembler__any_bytes__are_messages_or_an_error(data: bytes) -> None:
    into = assembler()
    try:
        for start in range(0, len(data), 7):
            into.feed(data[start : start + 7])
    except MlctlError as error:
        assert error.code in (ErrorCode.INVALID_INPUT, ErrorCode.PAYLOAD_TOO_LARGE)
    assert sum(len(message.data) + 5 for message in into.messages) <= len(data)


def test_assembler__declared_length_above_the_limit__is_rejected_at_once() -> None:
    with pytest.raises(MlctlError) as caught:
        assembler().feed(b"\0" + (101).to_bytes(4, "big"))
    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE


def test_assembler__declared_length__charges_only_what_arrived() -> None:
    inflight = Inflight(1000)
    waiting = [assembler(limit=1 << 20, inflight=inflight) for _ in range(4)]
    for each in waiting:
        each.feed(frame(bytes(1 << 20))[:20])
    overhead = inflight.used // 4 - 15
    assert inflight.used == 4 * (15 + overhead) < 1000
    with pytest.raises(BusyError):
        waiting[0].feed(bytes(800))
    for each in waiting:
        each.drop()
    assert inflight.used == 0


async def test_unpack_apart__inflated_bytes_above_the_budget__is_busy() -> None:
    inflated = random.Random(1).randbytes(1 << 20) + bytes(4 << 20)
    packed = RawMessage(gzip.compress(inflated), compressed=True)
    inflight = Inflight(len(packed.data) + (2 << 20))

    with pytest.raises(BusyError):
        await unpack_apart(packed, b"gzip", 64 << 20, inflight)
    assert inflight.used == 0
    inflight.limit = len(packed.data) + len(inflated)
    assert await unpack_apart(packed, b"gzip", 64 << 20, inflight) == inflated
    assert inflight.used == 0


def test_assembler__message_in_small_parts__takes_no_more_memory() -> None:
    into = assembler(limit=1 << 20)
    data = frame(bytes(range(256)) * 400)
    tracemalloc.start()
    try:
        for start in range(0, len(data) - 3, 3):
            into.feed(data[start : start + 3])
        assert tracemalloc.get_traced_memory()[1] < 2 * len(data)
    finally:
        tracemalloc.stop()
    into.feed(data[start + 3 :])
    assert into.take().data == data[5:]


def test_assembler__first_message_taken__rest_stays_charged() -> None:
    inflight = Inflight(sys.maxsize)
    into = assembler(inflight=inflight)
    into.feed(frame(b"x" * 9) + frame(b"y" * 50)[:30])
    before = inflight.used
    into.take()
    assert 50 <= inflight.used < before


def test_unpack__above_the_limit_or_invalid__is_rejected() -> None:
    packed = RawMessage(gzip.compress(b"x" * 90), compressed=True)
    assert unpack(packed, b"gzip", 100) == b"x" * 90
    assert unpack(RawMessage(b"x", compressed=False), b"gzip", 100) == b"x"
    for coding, limit, code in (
        (b"gzip", 80, ErrorCode.PAYLOAD_TOO_LARGE),
        (b"deflate", 100, ErrorCode.INVALID_INPUT),
        (b"identity", 100, ErrorCode.INVALID_INPUT),
    ):
        with pytest.raises(MlctlError) as caught:
            unpack(packed, coding, limit)
        assert caught.value.code is code
