"""A link between two brokers: publish first, then acknowledge; one broker where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.stream.base import Commit, ConnectionRequest, Guarantee, StreamUrl
from mlctl.services.stream.transports.bridge import Bridge, connect
from mlctl.services.stream.transports.sqlite import SqliteConnection, SqliteProducer
from tests.services.stream.contract import answered, numbered, numbers, read, send, take


def place(folder: Path, file: str, topic: str) -> StreamUrl:
    return StreamUrl.parse(f"sqlite://{folder / file}#{topic}")


def test_bridge__urls_at_one_broker__share_a_connection(tmp_path: Path) -> None:
    source = place(tmp_path, "a.db", "in")
    link = connect(
        ConnectionRequest(source, "g", source.with_topic("out"), source.with_topic("dead"))
    )
    assert isinstance(link, SqliteConnection)
    assert link.guarantee is Guarantee.EXACTLY_ONCE


def test_bridge__answers_at_another_broker__at_least_once(tmp_path: Path) -> None:
    source, target = place(tmp_path, "a.db", "in"), place(tmp_path, "b.db", "out")
    send(source, numbered(0, 20))
    request = ConnectionRequest(source, "g", target, source.with_topic("dead"))
    link = connect(request)
    assert link.guarantee is Guarantee.AT_LEAST_ONCE
    with link:
        found = take(link, 20)
        link.commit(Commit(found, answered(found[1:]), answered(found[:1])))
        assert sum(link.lag().values()) == 0
    assert numbers(read(target)) == [*range(1, 20)]
    assert numbers(read(source.with_topic("dead"))) == [0]


def test_bridge__published_but_not_acknowledged__is_delivered_again(tmp_path: Path) -> None:
    source, target = place(tmp_path, "a.db", "in"), place(tmp_path, "b.db", "out")
    send(source, numbered(0, 5))

    class Forgetful(SqliteConnection):
        def commit(self, batch: Commit) -> None:
            raise MlctlError(ErrorCode.BROKER_UNAVAILABLE, f"{len(batch.done)} messages")

    request = ConnectionRequest(source, "g")
    with Bridge(Forgetful(request), SqliteProducer(target)) as link:
        found = take(link, 5)
        with pytest.raises(MlctlError):
            link.commit(Commit(found, answered(found)))
    with connect(ConnectionRequest(source, "g", target)) as again:
        found = take(again, 5)
        again.commit(Commit(found, answered(found)))
    both = read(target)
    assert numbers(both) == sorted([*range(5)] * 2)
    assert len({dict(each.headers)["source"] for each in both}) == 5


def test_bridge__exactly_once_over_two_brokers__is_rejected(tmp_path: Path) -> None:
    source, target = place(tmp_path, "a.db", "in"), place(tmp_path, "b.db", "out")
    with pytest.raises(MlctlError) as caught:
        connect(ConnectionRequest(source, "g", target, exactly_once=True))
    assert caught.value.code is ErrorCode.INVALID_INPUT


@pytest.mark.parametrize("which", ["answers", "dead"])
def test_bridge__source_is_also_the_sink__is_rejected(tmp_path: Path, which: str) -> None:
    source = place(tmp_path, "a.db", "in")
    answers = source if which == "answers" else source.with_topic("out")
    dead = source if which == "dead" else source.with_topic("dead")
    with pytest.raises(MlctlError, match="cannot be both"):
        connect(ConnectionRequest(source, "g", answers, dead))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://TOKEN@h:4222#x", "redis://@h:4222#x"),
        ("redis://me:pa,ss@h/0#x", "redis://me@h/0#x"),
    ],
)
def test_stream_url__redacted__has_no_passwords_and_tokens(text: str, shown: str) -> None:
    assert StreamUrl.parse(text).redacted() == shown


@pytest.mark.parametrize(
    "text",
    [
        "redis://me:secret#secret@h:6379/0#x",
        "redis://me:12#secret@h/0#x",
        "redis://:secret?secret@h/0#x",
        "kafka://me:secret?secret=secret@h:9092#x",
    ],
)
def test_stream_url__password__is_not_shown_in_part(text: str) -> None:
    with pytest.raises(MlctlError, match="an @ after its first") as caught:
        StreamUrl.parse(text)
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert "secret" not in f"{caught.value.message} {caught.value.hint}"


def test_stream_url__at_sign_in_a_topic_or_an_option__is_escaped() -> None:
    place = StreamUrl.parse("redis://h/0?consumer=me%40here#user%40orders")
    assert (place.topic, place.options) == ("user@orders", {"consumer": "me@here"})
    assert StreamUrl.parse("sqlite://a@b.db#user@orders").topic == "user@orders"


@pytest.mark.parametrize(
    "text",
    [
        "redis://u:secret@localhost:abc#x",
        "redis://localhost?idle_s=soon#x",
        "kafka://localhost?message.max.bytes=many#x",
    ],
)
def test_stream_url__option_that_is_no_number__is_rejected(text: str) -> None:
    source = StreamUrl.parse(text)
    with pytest.raises(MlctlError) as caught:
        connect(ConnectionRequest(source, "g", source.with_topic("out"), source.with_topic("dead")))
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert "secret" not in str(caught.value)
