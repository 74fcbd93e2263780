"""Answers of a stream that join the precomputed ones."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from bundle.errors import ErrorCode, MlctlError
from bundle.verify import VerifiedBundle
from services.precomputed.row_codec import RowCodec
from services.precomputed.store_urls import open_store
from services.stream.base import ConnectionRequest, Outgoing, StreamUrl
from services.stream.engine import RunSettings
from services.stream.payloads import PayloadRequest
from services.stream.payloads.precomputed import PrecomputedPayload
from services.stream.run import StreamConfig, run_stream
from services.stream.transports import transport_of
from services.stream.transports.precomputed import PrecomputedProducer
from tests.services.stream.contract import read, send
from tests.support.bundles import expected, make_bundle


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VerifiedBundle:
    monkeypatch.setenv("MLCTL_PRECOMPUTED_STORE", str(tmp_path / "store"))
    return make_bundle(tmp_path / "tiny")


def _stored(bundle: VerifiedBundle, tmp_path: Path, *keys: str) -> list[list[float] | None]:
    store = open_store("fresh", str(tmp_path / "store"))
    reader = store.reader(bundle.digest, 1.0)
    codec = RowCodec(bundle.manifest.signature.outputs)
    try:
        return [
            None if row is None else codec.decode([row.payload])["y"][0].tolist()
            for row in reader.get(keys)
        ]
    finally:
        reader.close()
        store.close()


def _run(bundle: VerifiedBundle, tmp_path: Path, target: str) -> None:
    source = StreamUrl.parse(f"sqlite://{tmp_path}/events.db#in")
    wanted = StreamConfig(
        ConnectionRequest(source, "g", StreamUrl.parse(target), source.with_topic("dead")),
        PayloadRequest(),
        RunSettings(dead_share=1.0, until_empty=True),
    )
    run_stream(bundle, wanted, lambda _event: None, threading.Event())


def _expected(*row: float) -> list[float]:
    found: list[float] = expected(np.array([row], np.float32))[0].tolist()
    return found


def test_precomputed_stream__key_from_a_field__answers_are_looked_up(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    source = StreamUrl.parse(f"sqlite://{tmp_path}/events.db#in")
    values = [
        b'{"user":"ann","x":[1,2,3,4]}',
        b'{"user":7,"x":[1,1,1,1]}',
        b'{"x":[1,1,1,1]}',
        b'{"user":"ann","x":[5,5,5,5]}',
        b'{"user":"bob","x":[[5,5,5,5],[1,1,1,1]]}',
        b'{"user":1.5,"x":[5,5,5,5]}',
    ]
    send(source, [Outgoing(value, b"other") for value in values])
    _run(bundle, tmp_path, "precomputed://fresh?key=user")
    ann, seven, other, bob = _stored(bundle, tmp_path, "ann", "7", "other", "bob")
    assert (ann, seven) == (_expected(5, 5, 5, 5), _expected(1, 1, 1, 1))
    assert (other, bob) == (None, None)
    dead = {m.value: dict(m.headers)["mlctl-reason"] for m in read(source.with_topic("dead"))}
    assert set(dead) == {values[2], values[4], values[5]}
    assert b"'user', the entity key, is missing" in dead[values[2]]


def test_precomputed_stream__key_of_the_message__answers_are_looked_up(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    source = StreamUrl.parse(f"sqlite://{tmp_path}/events.db#in")
    send(source, [Outgoing(b'{"x":[1,2,3,4]}', b"ann")])
    _run(bundle, tmp_path, "precomputed://fresh")
    assert _stored(bundle, tmp_path, "ann") == [_expected(1, 2, 3, 4)]
    send(source, [Outgoing(b'{"x":[1,2,3,4]}')])
    with pytest.raises(MlctlError, match="no key that could be an entity's"):
        _run(bundle, tmp_path, "precomputed://fresh")


def test_precomputed__redelivered_message__does_not_replace_a_newer_answer(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    signature = bundle.manifest.signature
    payload = PrecomputedPayload(PayloadRequest(), signature, None)

    def answer(number: float, source: str) -> Outgoing:
        (value,) = payload.encode({"y": np.full((1, 4), number, np.float32)}, [1])
        headers = (("mlctl-digest", bundle.digest.encode()), ("mlctl-source", source.encode()))
        return Outgoing(value, b"ann", headers)

    with PrecomputedProducer(open_store("fresh", str(tmp_path / "store"))) as producer:
        for number, source, wanted in (
            (1, "redis:in/0/9-1", 1),
            (2, "redis:in/0/10-0", 2),
            (3, "redis:in/0/9-5", 2),
            (4, "redis:in/1/3-0", 4),
            (5, "redis:in/1/3-0", 5),
        ):
            producer.publish([answer(number, source)])
            assert _stored(bundle, tmp_path, "ann") == [[wanted] * 4]


def test_precomputed_stream__store_as_source__is_rejected() -> None:
    place = StreamUrl.parse("precomputed://fresh")
    with pytest.raises(MlctlError, match="not a source of messages") as caught:
        transport_of(place).open_connection(ConnectionRequest(place, "g"))
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_stream_url__unknown_option__is_rejected() -> None:
    place = StreamUrl.parse("precomputed://fresh?keys=id")
    with pytest.raises(MlctlError, match="no option 'keys'") as caught:
        transport_of(place).open_producer(place)
    assert caught.value.code is ErrorCode.INVALID_INPUT
