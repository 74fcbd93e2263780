"""Calls whose id changes with each of them: known as those without, and told theirs."""

from __future__ import annotations

from uuid import uuid4

import pytest

from services.online.grpc.http2.desk import InferCall, InferDesk
from services.online.grpc.http2.ids import cut_id, field_head, id_in, is_id
from services.online.grpc.server import GrpcServer
from services.online.models.served_model import ServedModel
from services.protocol.messages import methods
from tests.services.online.grpc.http2.conftest import Raw, Serve, head
from tests.services.online.grpc.http2.test_desk import body, data_of, hold, learned
from tests.support.listening import until


@pytest.mark.parametrize("size", [1, 127, 128, 16_383])
def test_a_field_is_found_and_read(size: int) -> None:
    text = "x" * size
    message = methods()["ModelInfer"].request(model_name="n" * size, model_version="v", id=text)
    data = b"12345" + message.SerializeToString() + b"\x22\0"
    start, stop = cut_id(data, 5)
    field = data[start:stop]
    assert field == field_head(b"\x1a", size) + text.encode()
    assert is_id(field)
    assert id_in(field) == text
    for wrong in (field[:-1], field + b"x", b"\x22" + field[1:], field[:-1] + b"\xff"):
        assert not is_id(wrong)


def test_what_is_no_message_has_no_id() -> None:
    for data in (b"", b"\x1a", b"\x0a", b"\x0a\xff\xff\xff", b"\x1a\x80", b"\x1a\x80\x80\x01"):
        assert cut_id(data) == (0, 0)
    for field in (
        b"",
        b"\x1a",
        b"\x1a\0",
        b"\x1a\x81\0x",
        field_head(b"\x1a", 16_384) + bytes(16_384),
    ):
        assert not is_id(field)
    assert id_in(b"") == ""


def test_an_id_of_any_length_is_answered_byte_for_byte(
    serve: Serve, taken: list[InferCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["", "7", str(uuid4()), *("x" * size for size in (127, 128, 129, 300, 16_383))]

    async def answers(raw: Raw) -> list[tuple[bytes, dict[bytes, bytes]]]:
        found = []
        for text in texts:
            stream = raw.ask(head(), body(3, id=text))
            trailers = await raw.trailers(stream)
            found.append((data_of(raw, stream), trailers))
        return found

    async def use(server: GrpcServer, host: ServedModel) -> None:
        raw = await learned(server)
        known = await answers(raw)
        assert len(taken) == len(texts)
        assert host.inflight.used == 0
        with monkeypatch.context() as patch:
            patch.setattr(InferDesk, "take", lambda *_: False)
            assert await answers(raw) == known
            assert len(taken) == len(texts)
        for text, (data, _) in zip(texts, known, strict=True):
            assert methods()["ModelInfer"].response.FromString(data[5:]).id == text
        raw.close()

    serve(use, max_body_bytes=30_000)


def test_an_id_counts_as_a_part_of_the_message(serve: Serve, taken: list[InferCall]) -> None:
    async def use(server: GrpcServer, host: ServedModel) -> None:
        raw = await learned(server)
        long = body(1, id="x" * 300)
        gate = hold(host)
        waits = raw.ask(head(), long)
        await until(lambda: len(taken) == 1)
        assert host.inflight.used == len(long)
        gate.set()
        assert (await raw.trailers(waits))[b"grpc-status"] == b"0"
        assert host.inflight.used == 0
        over = await raw.trailers(raw.ask(head(), body(1, id="x" * 400)))
        assert (over[b"grpc-status"], over[b"mlctl-code"]) == (b"8", b"payload_too_large")
        assert len(taken) == 1
        raw.close()

    serve(use, max_body_bytes=400)
