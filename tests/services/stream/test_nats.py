"""NATS JetStream on a real server: the contract, duplicates, redelivery, restarts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from bundle.errors import ErrorCode, MlctlError
from services.stream.base import (
    Commit,
    Guarantee,
    LinkRequest,
    Outgoing,
    Place,
    RefusedAnswersError,
    TakingOver,
)
from services.stream.transports.nats import transport
from services.stream.transports.nats_client import Session
from services.stream.transports.nats_publish import Publisher
from tests.services.stream.contract import (
    Broker,
    Places,
    TransportContract,
    answer,
    answered,
    numbered,
    numbers,
    open_link,
    read,
    send,
    take,
)
from tests.support.brokers import NatsServer, nats_server, stalled
from tests.support.wait import PATIENCE_SECONDS, wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as running:
        yield running


def place(server: NatsServer, name: str, options: str = "create=yes&ack_wait_s=1") -> Place:
    return Place.parse(f"nats://{server.address}?{options}#{name}")


class TestNats(TransportContract):
    """The contract."""

    @pytest.fixture
    def broker(self, server: NatsServer) -> Broker:
        return Broker(lambda name: place(server, name), Guarantee.DEDUPLICATED, fences=False)

    def test_a_slow_sink_is_waited_for(
        self, broker: Broker, places: Places, server: NatsServer
    ) -> None:
        send(places.source, numbered(0, 20))
        with open_link(places, broker) as link:
            held = take(link, 20)
            with stalled(server.process, 0.6):
                began = time.monotonic()
                answer(link, held)
                assert time.monotonic() - began > 0.4, "it did not wait for the broker"
            assert [*link.poll(20, 0.05)] == []
        assert numbers(read(places.answers)) == [*range(20)]

    def test_a_member_that_works_long_keeps_its_messages(self, server: NatsServer) -> None:
        source = place(server, "long-in", "create=yes&ack_wait_s=0.5")
        wanted = LinkRequest(source, "g", place(server, "long-out"))
        send(source, numbered(0, 10))
        with transport.open_link(wanted) as busy, transport.open_link(wanted) as idle:
            held = take(busy, 10)
            deadline = time.monotonic() + 1.5  # three times what it takes to be given up
            while time.monotonic() < deadline:
                busy.poll(0, 0.0)
                assert [*idle.poll(10, 0.1)] == []
            answer(busy, held)
        assert numbers(read(place(server, "long-out"))) == [*range(10)]

    def test_an_answer_that_is_sent_twice_is_dropped(
        self, broker: Broker, places: Places, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        send(places.source, numbered(0, 10))
        with open_link(places, broker) as link:
            held = take(link, 10)
            cut_after_publish(monkeypatch)
            with pytest.raises(MlctlError) as caught:
                answer(link, held)
            assert caught.value.code is ErrorCode.BROKER_UNAVAILABLE
            assert numbers(read(places.answers)) == [*range(10)]
            assert sum(link.lag().values()) == 10, "nothing was acknowledged"
            answer(link, held)
        assert numbers(read(places.answers)) == [*range(10)]


def cut_after_publish(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = Publisher.publish

    async def cut(*given: Any) -> None:
        await publish(*given)
        monkeypatch.undo()
        raise ConnectionResetError

    monkeypatch.setattr(Publisher, "publish", cut)


def test_a_window_that_is_too_short_is_no_promise(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, answers = (
        place(server, f"short-{name}", "create=yes&window_s=0.1") for name in ("in", "out")
    )
    send(source, numbered(0, 1))
    with transport.open_link(LinkRequest(source, "g", answers)) as link:
        assert link.guarantee is Guarantee.AT_LEAST_ONCE
        held = take(link, 1)
        cut_after_publish(monkeypatch)
        with pytest.raises(MlctlError):
            answer(link, held)
        # What the guarantee says: from some moment on it comes twice.
        began = time.monotonic()
        while numbers(read(answers)) == [0]:
            assert time.monotonic() - began < PATIENCE_SECONDS
            send(answers, answered(held))


def test_the_ack_wait_of_the_consumer_says_when_others_take_over(server: NatsServer) -> None:
    for options in ("create=yes&ack_wait_s=90", "ack_wait_s=5"):
        source = place(server, "taken-over", options)
        with transport.open_link(LinkRequest(source, "g")) as link:
            assert isinstance(link, TakingOver)
            assert link.takeover_s == 90.0


def test_more_are_sent_at_once_than_the_server_buffers(server: NatsServer) -> None:
    many = place(server, "many")
    send(many, numbered(0, 12_000))
    assert [int(each.value) for each in read(many)] == [*range(12_000)]
    assert [int(each.value) for each in read(many, last=3)] == [11_997, 11_998, 11_999]


def test_streams_are_made_on_request_only(server: NatsServer) -> None:
    for wanted, code in (
        (place(server, "missing", ""), ErrorCode.NOT_FOUND),
        (place(server, "missing", "create=perhaps"), ErrorCode.INVALID_INPUT),
        (place(server, "missing", "colour=red"), ErrorCode.INVALID_INPUT),
        (place(server, "all.*"), ErrorCode.INVALID_INPUT),
        (Place.parse("nats://127.0.0.1:9#x"), ErrorCode.BROKER_UNAVAILABLE),
    ):
        with pytest.raises(MlctlError) as caught:
            send(wanted, [])
        assert caught.value.code is code


def test_what_nats_cannot_do_is_refused(server: NatsServer) -> None:
    source = place(server, "refusals")
    for wanted in (
        LinkRequest(source, "g", exactly_once=True),
        LinkRequest(source, "g", ordered=True),
        LinkRequest(source, "a.b"),
        LinkRequest(source, "g", Place.parse("nats://elsewhere:4222#x")),
    ):
        with pytest.raises(MlctlError) as caught:
            transport.open_link(wanted)
        assert caught.value.code is ErrorCode.INVALID_INPUT


def test_a_consumer_of_another_kind_is_left_alone(server: NatsServer) -> None:
    source = place(server, "kinds")
    send(source, [])
    with_client(source, lambda js: js.add_consumer("kinds", durable_name="g", ack_policy="none"))
    with pytest.raises(MlctlError, match="explicit acks"):
        transport.open_link(LinkRequest(source, "g")).__enter__()


def test_a_consumer_that_is_deleted_ends_the_run(server: NatsServer) -> None:
    source = place(server, "deleted")
    send(source, [])
    with transport.open_consumer(LinkRequest(source, "g")) as consumer:
        assert [*consumer.poll(5, 0.05)] == []
        with_client(source, lambda js: js.delete_consumer("deleted", "g"))
        codes = set()

        def ended() -> bool:
            try:
                consumer.poll(5, 0.05)
            except MlctlError as error:
                codes.add(error.code)
            return ErrorCode.NOT_FOUND in codes

        wait_until(ended, what="it is told")
        assert codes <= {ErrorCode.NOT_FOUND, ErrorCode.BROKER_UNAVAILABLE}


def test_a_message_that_is_too_large_says_so(server: NatsServer) -> None:
    with pytest.raises(MlctlError) as caught:
        send(place(server, "large"), [Outgoing(bytes(2 << 20))])
    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE


def test_an_answer_that_is_too_large_is_no_obstacle(server: NatsServer) -> None:
    source, answers, dead = (place(server, f"huge-{part}") for part in ("in", "out", "dead"))
    send(source, numbered(0, 3))
    for each in (answers, dead):
        send(each, [])
    with transport.open_link(LinkRequest(source, "g", answers, dead)) as link:
        found = take(link, 3)
        most = 1 << 20
        made = [each._replace(value=bytes(most - 500)) for each in answered(found)]
        made[1] = made[1]._replace(value=bytes(most - 50))  # With its headers it is too large.
        with pytest.raises(RefusedAnswersError) as refused:
            link.commit(Commit(found, made))
        assert list(refused.value.refused) == [1]
        assert read(answers) == []
        letter = Outgoing(bytes(most - 50), b"key", (("why", b"large"),), "dead-1")
        link.commit(Commit(found, [made[0], made[2]], [letter]))
    assert len(read(answers)) == 2
    (left,) = read(dead)
    assert (left.value, left.key) == (b"", b"key")
    assert dict(left.headers)["mlctl-left-out"] == b"%d" % (most - 50)


def test_tls_and_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    ours = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    ours.private_key_pem.write_to_path(tmp_path / "key.pem")
    ours.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    files = ("--tlscert", str(tmp_path / "cert.pem"), "--tlskey", str(tmp_path / "key.pem"))
    with nats_server(tmp_path / "data", None, "--auth", "se#cr@t", "--tls", *files) as guarded:
        options = f"create=yes&tls_ca={tmp_path / 'ca.pem'}"
        send(Place.parse(f"nats://se%23cr%40t@{guarded.address}?{options}#x"), numbered(0, 2))
        without = Place.parse(f"nats://{guarded.address}?{options}#x")
        with pytest.raises(MlctlError) as caught:
            send(without, numbered(0, 1))
        assert caught.value.code is ErrorCode.UNAUTHENTICATED
        monkeypatch.setenv("MLCTL_NATS_TOKEN", "se#cr@t")
        assert numbers(read(without)) == [0, 1]
        with pytest.raises(MlctlError) as caught:
            send(Place.parse(f"nats://{guarded.address}#x"), [])  # who signed it is not known
        assert caught.value.code is ErrorCode.BROKER_UNAVAILABLE


def test_user_and_password_of_a_place_are_decoded(tmp_path: Path) -> None:
    with nats_server(tmp_path, None, "--user", "me", "--pass", "a#b?c/d@e") as guarded:
        who = "me:a%23b%3Fc%2Fd%40e"
        source = Place.parse(f"nats://{who}@{guarded.address}?create=yes#x")
        assert "a%23b" not in source.shown()
        send(source, numbered(0, 1))
        assert numbers(read(source)) == [0]


def with_client(source: Place, act: Callable[[Any], Any]) -> None:
    """Do something as the owner of the server would."""
    session = Session(source)

    async def work(client: Any) -> None:
        await act(session.jetstream(client))

    session.run(work)
    session.close()
