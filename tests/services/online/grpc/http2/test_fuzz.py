"""Whatever bytes come, the server answers or closes, logs no surprise, and serves others."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from hpack import Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from mlctl.bundle.verify import VerifiedBundle
from mlctl.services.online.grpc.server import GrpcServer
from mlctl.services.online.models.served_model import ServedModel
from tests.services.online.grpc.http2.conftest import (
    EMPTY,
    LIVE,
    Raw,
    framed,
    head,
    infer_message,
    serving,
)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
BLOCK = Encoder().encode(head())
BODY = framed(infer_message().SerializeToString())
PAYLOAD = st.one_of(
    st.binary(max_size=40), st.sampled_from([BLOCK, BODY, BODY[:9], bytes(4), bytes(8), bytes(5)])
)
STREAM = st.sampled_from([0, 1, 1, 3, 5, 2, (1 << 31) - 1])


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    kind, flags = draw(st.integers(0, 11)), draw(st.sampled_from([0, 1, 4, 5, 8, 0x20, 0xFF]))
    stream, payload = draw(STREAM), draw(PAYLOAD)
    prefix = len(payload).to_bytes(3, "big") + bytes([kind, flags])
    return prefix + stream.to_bytes(4, "big") + payload


INPUTS = st.one_of(
    st.binary(max_size=200),
    st.lists(frames(), max_size=8).map(lambda found: PREFACE + b"".join(found)),
)


@settings(max_examples=12, deadline=None)
@given(st.lists(INPUTS, min_size=20, max_size=20))
def test_server__any_bytes__answers_or_closes(
    shared_bundle: VerifiedBundle, inputs: list[bytes]
) -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = records.append  # type: ignore[assignment,method-assign]
    loggers = [logging.getLogger(name) for name in ("mlctl.grpc", "asyncio")]

    async def send(port: int, data: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        writer.write_eof()
        with contextlib.suppress(ConnectionError):  # cut off, which is an answer, too
            await asyncio.wait_for(reader.read(), 30)
        writer.close()

    async def use(server: GrpcServer, host: ServedModel) -> None:
        await asyncio.gather(*(send(server.port, data) for data in inputs))
        raw = await Raw.open(server.port)
        assert (await raw.trailers(raw.ask(head(LIVE), EMPTY)))[b"grpc-status"] == b"0"
        assert host.inflight.used == 0
        raw.close()

    for logger in loggers:
        logger.addHandler(handler)
    try:
        serving(shared_bundle, use)
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
    assert not records, [record.getMessage() for record in records]
