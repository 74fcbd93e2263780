"""Answers of a stream as HTTP requests to a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.stream.base import (
    ConnectionRequest,
    Outgoing,
    RejectedAnswersError,
    RetryLaterError,
    StreamUrl,
)
from mlctl.services.stream.engine import RunSettings
from mlctl.services.stream.start import StreamConfig, run_stream
from mlctl.services.stream.transports import transport_of
from mlctl.services.stream.transports.bridge import connect
from mlctl.services.stream.transports.webhook import WebhookProducer
from tests.services.stream.contract import read, send
from tests.support.bundles import make_bundle
from tests.support.receiver import Receiver, receiving


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


def producer(url: str) -> WebhookProducer:
    place = StreamUrl.parse(url)
    made = transport_of(place).open_producer(place)
    assert isinstance(made, WebhookProducer)
    return made


def answer(number: int, key: bytes | None = None) -> Outgoing:
    headers = {"mlctl-source": f"kafka:ä/0/{number}", "mlctl-digest": "abc", "mlctl-model": "tiny"}
    encoded = tuple((name, value.encode()) for name, value in headers.items())
    return Outgoing(b'{"n":%d}' % number, key, encoded)


def numbers(receiver: Receiver) -> list[int]:
    return [each.document["n"] for each in receiver.deliveries if each.status == 204]


def test_webhook__answer__carries_its_id_and_the_token(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLCTL_WEBHOOK_TOKEN", "sesame")
    with producer(f"{receiver.url}?to=a%20b") as sink:
        sink.publish([answer(1, b"k\0")])
    (delivery,) = receiver.deliveries
    assert delivery.headers["idempotency-key"] == "kafka:%C3%A4/0/1"
    assert delivery.headers["mlctl-source"] == "kafka:%C3%A4/0/1"
    assert delivery.headers["mlctl-key"] == "k%00"
    assert (delivery.headers["mlctl-digest"], delivery.headers["mlctl-model"]) == ("abc", "tiny")
    assert delivery.headers["authorization"] == "Bearer sesame"
    assert delivery.headers["content-type"] == "application/json"
    assert delivery.document == {"n": 1}


def test_webhook__answers_of_one_key__arrive_in_order(receiver: Receiver) -> None:
    with producer(receiver.url) as sink:
        sink.publish([answer(n, b"ab"[n % 2 : n % 2 + 1]) for n in range(100)])
    found = numbers(receiver)
    assert sorted(found) == [*range(100)]
    for parity in (0, 1):
        of_key = [n for n in found if n % 2 == parity]
        assert of_key == sorted(of_key)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
def test_webhook__receiver_unavailable__only_the_rest_is_sent_again(
    receiver: Receiver, status: int
) -> None:
    batch = [answer(n, b"same") for n in range(4)]
    receiver.refuse(204, 204, status)
    with producer(receiver.url) as sink:
        with pytest.raises(MlctlError, match=f"HTTP {status}") as caught:
            sink.publish(batch)
        assert caught.value.code is ErrorCode.SINK_UNAVAILABLE
        assert "secret-part" not in str(caught.value)
        sink.publish(batch)
        assert numbers(receiver) == [0, 1, 2, 3]
        sink.publish(batch[:1])  # a message that is delivered again later
    assert numbers(receiver) == [0, 1, 2, 3, 0]


def test_webhook__retry_after__is_reported_in_seconds(receiver: Receiver) -> None:
    receiver.refuse(503, retry_after="3")
    receiver.refuse(429, retry_after="7")
    receiver.refuse(503, retry_after="Fri, 31 Dec 2027 23:59:59 GMT")
    pauses = set()
    with producer(receiver.url) as sink:
        for _ in range(3):
            with pytest.raises(RetryLaterError) as caught:
                sink.publish([answer(1)])
            pauses.add(caught.value.retry_after)
        assert pauses == {3.0, 7.0, 0.0}


def test_webhook__rejected_answer__is_named(receiver: Receiver) -> None:
    receiver.refuse(204, 422, 413)
    batch = [answer(n, b"same") for n in range(4)]
    with producer(receiver.url) as sink:
        with pytest.raises(RejectedAnswersError) as caught:
            sink.publish(batch)
        assert {n: reason[-8:] for n, reason in caught.value.rejected.items()} == {
            1: "HTTP 422", 2: "HTTP 413",
        }  # fmt: skip
        sink.publish([batch[0], batch[3]])
    assert numbers(receiver) == [0, 3]


@pytest.mark.parametrize("status", [301, 307, 401, 403, 404])
def test_webhook__wrong_url_or_token__ends_the_run(receiver: Receiver, status: int) -> None:
    receiver.refuse(status, location=receiver.url)
    with producer(receiver.url) as sink, pytest.raises(MlctlError) as caught:
        sink.publish([answer(1)])
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert len(receiver.deliveries) == 1, "redirects are not followed"


def test_webhook__nothing_listens__is_unavailable() -> None:
    with producer("http://127.0.0.1:9/secret") as sink, pytest.raises(MlctlError) as caught:
        sink.publish([answer(1)])
    assert caught.value.code is ErrorCode.SINK_UNAVAILABLE
    assert "secret" not in str(caught.value)


def test_webhook__dead_letters__need_a_stream(tmp_path: Path) -> None:
    source = StreamUrl.parse(f"sqlite://{tmp_path}/events.db#in")
    hook = StreamUrl.parse("https://host/path")
    with pytest.raises(MlctlError, match="nothing can read them again"):
        connect(ConnectionRequest(source, "g", hook, hook))
    with pytest.raises(MlctlError, match="not a source of messages"):
        connect(ConnectionRequest(hook, "g", source, source.with_topic("dead")))


def test_run__receiver_rejects_and_fails__each_message_is_accepted_or_dead(
    receiver: Receiver, tmp_path: Path
) -> None:
    source = StreamUrl.parse(f"sqlite://{tmp_path}/events.db#in")
    send(source, [Outgoing(b'{"x":[%d,0,0,0]}' % n) for n in range(40)])
    receiver.refuse(204, 503, 422)
    config = StreamConfig(
        ConnectionRequest(source, "g", StreamUrl.parse(receiver.url), source.with_topic("dead")),
        settings=RunSettings(dead_share=1.0, until_empty=True),
    )
    report = run_stream(
        make_bundle(tmp_path / "tiny"), config, lambda _event: None, threading.Event()
    )
    assert (report.totals.answers, report.totals.dead) == (39, 1)
    taken = [each.headers["mlctl-source"] for each in receiver.deliveries if each.status == 204]
    (letter,) = read(source.with_topic("dead"))
    assert dict(letter.headers)["mlctl-error"] == b"invalid_input"
    dead = (dict(letter.headers)["mlctl-source"] or b"").decode()
    assert len(taken) == len(set(taken)) == 39
    assert dead not in taken
