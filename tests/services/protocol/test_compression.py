import asyncio
import gzip
import random
import tracemalloc
import zlib

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.batching.admission import BusyError
from mlctl.services.protocol import compression as encoding
from mlctl.services.protocol.compression import (
    CODINGS,
    COMPRESS_FROM_BYTES,
    COMPRESS_TO_BYTES,
    STEP_BYTES,
    Inflater,
    accepted_coding,
    compress_response,
    content_coding,
    deflate,
    inflate,
    inflate_on_thread,
)

TEXT = b"the same words again and again, " * 40


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("step", [1, 7, STEP_BYTES])
def test_inflate__deflated_in_steps__is_the_original(
    coding: str, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "STEP_BYTES", step)
    packed = deflate(TEXT, coding)
    assert len(packed) < len(TEXT) / 4
    assert inflate(packed, coding, len(TEXT)) == TEXT


@given(st.binary(max_size=3000), st.integers(0, 40), st.integers(1, 60), st.sampled_from(CODINGS))
def test_inflater__any_body_and_step__gives_the_body_a_step_at_a_time(
    body: bytes, times: int, step: int, coding: str
) -> None:
    body *= times
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "STEP_BYTES", step)
        inflater = Inflater(deflate(body, coding), coding, len(body))
        done = False
        while not done:
            before = inflater.size
            done = inflater.step()
            assert inflater.size - before <= step
    assert inflater.result() == body


def test_inflate_apart__charge_raises__ends_the_work() -> None:
    sizes: list[int] = []

    def charge(size: int) -> None:
        sizes.append(size)
        if size > STEP_BYTES:
            raise BusyError("full")

    body = random.Random(1).randbytes(3 * STEP_BYTES)
    with pytest.raises(BusyError):
        asyncio.run(inflate_on_thread(deflate(body, "gzip"), "gzip", len(body), charge, None))
    assert len(sizes) == 2
    assert sizes[-1] <= 2 * STEP_BYTES


def test_inflate__written_by_other_tools__is_read() -> None:
    assert inflate(gzip.compress(TEXT, mtime=0), "gzip", 10_000) == TEXT
    assert inflate(zlib.compress(TEXT), "deflate", 10_000) == TEXT
    assert gzip.decompress(deflate(TEXT, "gzip")) == TEXT
    assert zlib.decompress(deflate(TEXT, "deflate")) == TEXT


@pytest.mark.parametrize("coding", CODINGS)
def test_inflate__above_the_limit__is_rejected(coding: str) -> None:
    assert len(inflate(deflate(bytes(1000), coding), coding, 1000)) == 1000
    with pytest.raises(MlctlError, match="inflates to more than the limit of 1000") as caught:
        inflate(deflate(bytes(1001), coding), coding, 1000)
    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE


def test_inflate__large_and_100_times_its_size__is_rejected() -> None:
    bomb = deflate(bytes(8 << 20), "gzip")
    with pytest.raises(MlctlError, match=r"100 times its size, to \d{7} bytes") as caught:
        inflate(bomb, "gzip", 64 << 20)
    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE
    assert len(inflate(deflate(bytes(1 << 20), "gzip"), "gzip", 64 << 20)) == 1 << 20


def test_inflate__compression_bomb__takes_little_memory() -> None:
    bomb = deflate(bytes(64 << 20), "gzip")
    tracemalloc.start()
    try:
        with pytest.raises(MlctlError, match="inflates to more"):
            inflate(bomb, "gzip", 100_000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "ends too early"),
        (gzip.compress(TEXT, mtime=0)[:-1], "ends too early"),
        (b"plain text", "not valid gzip"),
        (zlib.compress(TEXT), "not valid gzip"),
        (gzip.compress(TEXT, mtime=0)[:-8] + bytes(8), "not valid gzip"),
        (gzip.compress(TEXT, mtime=0) + b"x", "data after the end"),
        (gzip.compress(TEXT, mtime=0) + gzip.compress(TEXT, mtime=0), "data after the end"),
    ],
)
@pytest.mark.parametrize("step", [1, 60, STEP_BYTES])
def test_inflate__damaged_body__is_rejected(
    body: bytes, message: str, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "STEP_BYTES", step)
    with pytest.raises(MlctlError, match=message) as caught:
        inflate(body, "gzip", 10_000)
    assert caught.value.code is ErrorCode.INVALID_INPUT


@given(st.binary(max_size=200), st.sampled_from(CODINGS), st.integers(0, 100))
def test_inflate__any_bytes__are_inflated_or_rejected(body: bytes, coding: str, limit: int) -> None:
    try:
        assert len(inflate(body, coding, limit)) <= limit
    except MlctlError as error:
        assert error.code in (ErrorCode.INVALID_INPUT, ErrorCode.PAYLOAD_TOO_LARGE)


@pytest.mark.parametrize(
    ("value", "coding"),
    [("gzip", "gzip"), (" X-GZip ", "gzip"), ("deflate", "deflate"), ("", "identity"),
     ("Identity", "identity")],
)  # fmt: skip
def test_content_coding__each_spelling__is_read(value: str, coding: str) -> None:
    assert content_coding(value) == coding


@pytest.mark.parametrize("value", ["br", "gzip, gzip", "gzip;q=1"])
def test_content_coding__unsupported__is_rejected(value: str) -> None:
    with pytest.raises(MlctlError, match="is not served") as caught:
        content_coding(value)
    assert caught.value.code is ErrorCode.UNSUPPORTED_MEDIA_TYPE


@pytest.mark.parametrize(
    ("value", "coding"),
    [
        ("", None),
        ("gzip", "gzip"),
        ("gzip, deflate, br", "gzip"),
        ("deflate", "deflate"),
        ("gzip;q=0.5, deflate;q=0.8", "deflate"),
        ("gzip;q=0", None),
        ("gzip; q=0, *", "deflate"),
        ("*", "gzip"),
        ("br", None),
        ("identity", None),
        ("identity;q=1, gzip;q=0.5", None),
        ("identity;q=0.5, GZIP", "gzip"),
        ("gzip;q=much", None),
        ("gzip;q=2", None),
        ("gzip;level=1", "gzip"),
        (",,;", None),
    ],
)
def test_accepted_coding__accept_encoding__decides(value: str, coding: str | None) -> None:
    assert accepted_coding(value) == coding


def test_compress_response__size_and_coding__decide() -> None:
    packed, headers = compress_response(bytes(COMPRESS_FROM_BYTES), b"deflate, gzip;q=0.9")
    assert headers == [(b"content-encoding", b"deflate"), (b"vary", b"accept-encoding")]
    assert zlib.decompress(packed) == bytes(COMPRESS_FROM_BYTES)
    for size, accept in (
        (COMPRESS_FROM_BYTES - 1, b"gzip"),
        (COMPRESS_TO_BYTES + 1, b"gzip"),
        (COMPRESS_FROM_BYTES, b""),
        (COMPRESS_FROM_BYTES, b"br"),
        (COMPRESS_FROM_BYTES, b"\xff"),
    ):
        assert compress_response(bytes(size), accept) == (bytes(size), [])


def test_compress_response__incompressible__stays_as_it_is() -> None:
    noise = np.random.default_rng(0).normal(size=4096).astype(np.float32).tobytes()
    assert compress_response(noise, b"gzip") == (noise, [])
    text = b",".join(b"%.6f" % value for value in np.frombuffer(noise, np.float32))
    packed, _ = compress_response(text, b"gzip")
    assert len(packed) < len(text) * 0.6
