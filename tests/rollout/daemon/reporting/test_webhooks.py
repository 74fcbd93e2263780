"""Deliveries to a real HTTP server; time is the test's."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bundle.clock import ManualClock
from rollout.daemon.reporting import webhooks
from rollout.daemon.reporting.cursors import EventCursors
from rollout.daemon.reporting.webhooks import (
    MAX_AGE_SECONDS,
    Webhook,
    Webhooks,
    reader_of,
    signature,
)
from rollout.domain.spec import DeploymentSettings
from rollout.domain.state_machine import RolloutPhase
from rollout.journal.journal import Journal
from tests.support.played import Played
from tests.support.receiver import Receiver, receiving
from tests.support.wait import wait_until


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as listening:
        yield listening


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    made = tmp_path / "secret"
    made.write_text("hush\n")
    return made


def hook(receiver: Receiver, path: Path, clock: ManualClock, secret: Path | None = None) -> Webhook:
    return Webhook("shop", receiver.url, secret, path, clock)


def step(webhook: Webhook) -> float:
    """One step of a webhook that is then closed, as if its process had died."""
    try:
        return webhook.step()
    finally:
        webhook.close()


PROMOTED = [
    "deployment.up",
    "rollout.begun",
    *["rollout.phase"] * 3,
    "rollout.promoted",
]


def test_every_notice_comes_once_and_in_order(
    played: Played, receiver: Receiver, path: Path, clock: ManualClock
) -> None:
    played.until(RolloutPhase.SHIFT)
    webhook = hook(receiver, path, clock)
    webhook.step()
    assert receiver.taken == PROMOTED[:3]
    played.until(RolloutPhase.DONE)
    webhook.step()
    step(webhook)
    step(hook(receiver, path, clock))  # another process goes on where this one was
    assert receiver.taken == PROMOTED


def test_what_fails_is_sent_again_with_the_same_id(
    played: Played, receiver: Receiver, path: Path, clock: ManualClock, cursors: EventCursors
) -> None:
    played.until(RolloutPhase.DONE)
    receiver.refuse(503, 500)
    webhook = hook(receiver, path, clock)
    assert webhook.step() == 1.0
    assert webhook.step() == 2.0
    place = cursors.cursor("shop", reader_of(receiver.url))
    assert place is not None
    assert place.body == {"failures": 2, "error": "HTTP 500"}
    step(webhook)
    assert receiver.taken == PROMOTED
    assert len({each.headers["webhook-id"] for each in receiver.deliveries[:3]}) == 1
    place = cursors.cursor("shop", reader_of(receiver.url))
    assert place is not None
    assert "failures" not in place.body


@pytest.mark.parametrize(("asked", "pause"), [("40", 40.0), ("99999", 300.0), ("soon", 1.0)])
def test_the_receiver_may_ask_for_a_longer_pause(
    played: Played, receiver: Receiver, path: Path, clock: ManualClock, asked: str, pause: float
) -> None:
    played.tick()
    receiver.refuse(429, retry_after=asked)
    assert step(hook(receiver, path, clock)) == pause


def test_the_pauses_have_an_end(
    played: Played, receiver: Receiver, path: Path, clock: ManualClock
) -> None:
    played.tick()
    receiver.refuse(*[503] * 12)
    webhook = hook(receiver, path, clock)
    pauses = [webhook.step() for _ in range(12)]
    webhook.close()
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert pauses[-1] == 300.0


def test_a_redirect_is_not_followed(
    played: Played, receiver: Receiver, path: Path, clock: ManualClock
) -> None:
    played.tick()
    with receiving() as other:
        receiver.refuse(307, location=other.url)
        assert step(hook(receiver, path, clock)) == 1.0
        assert other.deliveries == []


def test_a_document_that_is_refused_does_not_hold_up_the_next(
    played: Played, receiver: Receiver, path: Path, clock: ManualClock
) -> None:
    played.until(RolloutPhase.DONE)
    receiver.refuse(422)
    step(hook(receiver, path, clock))
    assert receiver.taken == PROMOTED[1:]


def test_what_is_a_day_old_is_given_up(
    played: Played,
    receiver: Receiver,
    path: Path,
    clock: ManualClock,
    capfd: pytest.CaptureFixture[str],
) -> None:
    played.tick()
    clock.advance(MAX_AGE_SECONDS + 1)
    played.journal.retire("shop")
    step(hook(receiver, path, clock))
    assert "deployment.up" not in receiver.taken
    assert receiver.taken[-1] == "deployment.down"
    told = capfd.readouterr().err
    assert "given up after a day: deployment.up" in told
    assert "secret-part" not in told


def test_nothing_from_before_the_deployment_came_up_is_told(
    played: Played, receiver: Receiver, path: Path, clock: ManualClock
) -> None:
    played.until(RolloutPhase.DONE)
    played.journal.retire("shop")
    deployment = played.journal.deployment("shop")
    played.journal.create("shop", deployment.ports, deployment.settings, deployment.live)
    step(hook(receiver, path, clock))
    assert receiver.taken == ["deployment.up"]


def test_a_delivery_is_signed_as_standard_webhooks_are(
    played: Played, receiver: Receiver, path: Path, clock: ManualClock, secret: Path
) -> None:
    played.tick()
    step(hook(receiver, path, clock, secret))
    sent = receiver.deliveries[0]
    signed = f"{sent.headers['webhook-id']}.{sent.headers['webhook-timestamp']}.".encode()
    wanted = hmac.new(b"hush", signed + sent.body, hashlib.sha256).digest()
    assert sent.headers["webhook-signature"] == "v1," + base64.b64encode(wanted).decode()
    assert sent.headers["webhook-id"] == sent.document["id"]
    assert sent.headers["content-type"] == "application/json"


def test_the_signature_of_the_published_example() -> None:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    found = signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("content", ["", "whsec_no base64!", None])
def test_without_its_secret_nothing_is_sent(
    played: Played,
    receiver: Receiver,
    path: Path,
    clock: ManualClock,
    secret: Path,
    content: str | None,
) -> None:
    played.tick()
    secret.unlink() if content is None else secret.write_text(content)
    webhook = hook(receiver, path, clock, secret)
    assert webhook.step() == 1.0
    assert receiver.deliveries == []
    secret.write_text("hush")  # a secret is read anew each time
    step(webhook)
    assert receiver.deliveries


def test_a_receiver_that_is_away_holds_up_neither_the_other_nor_the_end(
    journal: Journal, clock: ManualClock, path: Path, receiver: Receiver
) -> None:
    away = "http://127.0.0.1:9/hook"
    clock.advance(time.time() - clock.wall())  # the threads have the machine's own clock
    settings = DeploymentSettings(webhooks=(away, receiver.url))
    with Webhooks("shop", settings, path):
        played = Played(journal, clock, settings)
        played.until(RolloutPhase.DONE)
        wait_until(lambda: receiver.taken == PROMOTED)
        journal.retire("shop")
    # What came last is still told at the end.
    assert receiver.taken == [*PROMOTED, "deployment.down"]


def test_many_that_hang_hold_up_the_end_no_longer_than_one(
    journal: Journal, clock: ManualClock, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "_LAST_SECONDS", 0.5)
    clock.advance(time.time() - clock.wall())
    before = threading.active_count()
    with socket.create_server(("127.0.0.1", 0), backlog=20) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        settings = DeploymentSettings(webhooks=tuple(f"{url}/{number}" for number in range(20)))
        with Webhooks("shop", settings, path):
            Played(journal, clock, settings)
            taken = [server.accept()[0] for _ in settings.webhooks]
            begun = time.monotonic()
        assert time.monotonic() - begun < 5.0
        for connection in taken:
            connection.close()
    wait_until(lambda: threading.active_count() <= before, what="the threads end")
