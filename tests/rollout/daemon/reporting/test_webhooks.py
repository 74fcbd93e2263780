"""Deliveries to a real HTTP server; time is the test's."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from mlctl.core.clock import SystemClock
from mlctl.core.errors import MlctlError
from mlctl.rollout.daemon.reporting import outbox
from mlctl.rollout.daemon.reporting.outbox import Delivering, EventSink, OpenSink, Outbox
from mlctl.rollout.daemon.reporting.webhooks import (
    MAX_AGE_SECONDS,
    WebhookSink,
    notified,
    signature,
    sink_of,
)
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.spec import DeploymentSettings, RolloutSpec
from mlctl.rollout.journal.journal import Journal
from tests.support.clock import ManualClock
from tests.support.played import SPEC, Played
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


class Process:
    """What delivers to `receiver`, with a connection of its own to the journal at `path`."""

    def __init__(
        self,
        receiver: Receiver,
        path: Path,
        clock: ManualClock,
        secret: Path | None = None,
        *,
        webhook: bool = True,
    ) -> None:
        self._clock = clock
        self._journal = Journal(path, clock)
        settings = DeploymentSettings(
            webhooks=(receiver.url,) if webhook else (),
            webhook_secret=None if secret is None else str(secret),
        )
        self._sink = WebhookSink("shop", receiver.url, settings, self._journal, clock)
        self._delivering = Delivering("shop", self._sink, self._journal, clock)

    def step(self) -> float:
        """Deliver what waits; the pause before a retry passes at once."""
        seconds = self._delivering.step()
        self._clock.advance(seconds)
        return seconds

    def close(self) -> None:
        self._sink.close()
        self._journal.close()


def hook(receiver: Receiver, path: Path, clock: ManualClock, secret: Path | None = None) -> Process:
    return Process(receiver, path, clock, secret)


def step(process: Process) -> float:
    """One step of a process that then ends."""
    try:
        return process.step()
    finally:
        process.close()


def outbox_of(path: Path, *urls: str) -> Outbox:
    """The outbox of webhooks with the machine's own clock."""
    return Outbox("shop", sinks_of(*urls), partial(Journal, path), SystemClock())


def sinks_of(*urls: str) -> dict[str, OpenSink]:
    settings = DeploymentSettings(webhooks=urls)

    def sink(url: str, journal: Journal, _stop: threading.Event) -> EventSink:
        return WebhookSink("shop", url, settings, journal, SystemClock())

    return {sink_of(url): partial(sink, url) for url in urls}


PROMOTED = [
    "deployment.up",
    "rollout.begun",
    *["rollout.phase"] * 3,
    "rollout.promoted",
]


def test_webhook__rollout_promoted__each_notice_once_and_in_order(
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


def test_webhook__receiver_fails__retried_with_the_same_id(
    played: Played, receiver: Receiver, path: Path, clock: ManualClock
) -> None:
    played.until(RolloutPhase.DONE)
    receiver.refuse(503, 500)
    webhook = hook(receiver, path, clock)
    assert webhook.step() == 1.0
    assert webhook.step() == 2.0
    failed = played.journal.delivery("shop", sink_of(receiver.url))
    assert (failed.failures, failed.error) == (2, "HTTP 500")
    step(webhook)
    assert receiver.taken == PROMOTED
    assert len({each.headers["webhook-id"] for each in receiver.deliveries[:3]}) == 1
    delivered = played.journal.delivery("shop", sink_of(receiver.url))
    assert (delivered.failures, delivered.error) == (0, None)


@pytest.mark.parametrize(("asked", "pause"), [("40", 40.0), ("99999", 300.0), ("soon", 1.0)])
def test_webhook__retry_after__longer_pause(
    played: Played, receiver: Receiver, path: Path, clock: ManualClock, asked: str, pause: float
) -> None:
    played.tick()
    receiver.refuse(429, retry_after=asked)
    assert step(hook(receiver, path, clock)) == pause


def test_webhook__receiver_keeps_failing__pauses_double_up_to_five_minutes(
    played: Played, receiver: Receiver, path: Path, clock: ManualClock
) -> None:
    played.tick()
    receiver.refuse(*[503] * 12)
    webhook = hook(receiver, path, clock)
    pauses = [webhook.step() for _ in range(12)]
    webhook.close()
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert pauses[-1] == 300.0


def test_webhook__redirect__not_followed(
    played: Played, receiver: Receiver, path: Path, clock: ManualClock
) -> None:
    played.tick()
    with receiving() as other:
        receiver.refuse(307, location=other.url)
        assert step(hook(receiver, path, clock)) == 1.0
        assert other.deliveries == []


def test_webhook__document_rejected__next_is_sent(
    played: Played, receiver: Receiver, path: Path, clock: ManualClock
) -> None:
    played.until(RolloutPhase.DONE)
    receiver.refuse(422)
    step(hook(receiver, path, clock))
    assert receiver.taken == PROMOTED[1:]


def test_webhook__notice_a_day_old__dropped(
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


def test_webhook__deployment_started_again__earlier_events_are_not_sent(
    played: Played, receiver: Receiver, path: Path, clock: ManualClock
) -> None:
    played.until(RolloutPhase.DONE)
    played.journal.retire("shop")
    deployment = played.journal.deployment("shop")
    played.journal.create("shop", deployment.ports, deployment.settings, deployment.live)
    step(hook(receiver, path, clock))
    assert receiver.taken == ["deployment.up"]


def test_notifications__named_by_one_rollout__its_notices_only(
    journal: Journal, receiver: Receiver, path: Path, clock: ManualClock
) -> None:
    played = Played(journal, clock, spec=replace(SPEC, notifications=(receiver.url,)))
    played.until(RolloutPhase.DONE)
    played.spec = SPEC
    played.begin("tiny:cc")
    played.until(RolloutPhase.DONE)
    journal.retire("shop")
    step(Process(receiver, path, clock, webhook=False))
    assert receiver.taken == PROMOTED[1:]
    assert {each.document["rollout"] for each in receiver.deliveries} == {1}


def test_notified__rollout_ended_a_day_ago__is_left_out(
    journal: Journal, clock: ManualClock
) -> None:
    settings = DeploymentSettings(webhooks=("https://a.example/x",))
    urls = ("https://b.example/x", *settings.webhooks)
    played = Played(journal, clock, settings, replace(SPEC, notifications=urls))

    def found() -> tuple[str, ...]:
        return notified(settings, journal.rollouts("shop"), clock.wall())

    clock.advance(2 * MAX_AGE_SECONDS)
    assert found() == ("https://a.example/x", "https://b.example/x")
    played.until(RolloutPhase.DONE)
    assert len(found()) == 2
    clock.advance(MAX_AGE_SECONDS)
    assert found() == settings.webhooks


def test_notifications__invalid_url__rejected_without_its_path() -> None:
    with pytest.raises(MlctlError) as caught:
        RolloutSpec(notifications=("hooks.example/secret-part",))
    assert caught.value.message == "notifications: give URLs with http or https"


def test_webhook__secret__signed_like_standard_webhooks(
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


def test_signature__published_example__equal() -> None:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    found = signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("content", ["", "whsec_no base64!", None])
def test_webhook__secret_unreadable__nothing_is_sent(
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


def test_outbox__one_receiver_unreachable__others_and_shutdown_are_not_delayed(
    journal: Journal, clock: ManualClock, path: Path, receiver: Receiver
) -> None:
    away = "http://127.0.0.1:9/hook"
    clock.advance(time.time() - clock.wall())  # the threads have the machine's own clock
    settings = DeploymentSettings(webhooks=(away, receiver.url))
    with outbox_of(path, *settings.webhooks):
        played = Played(journal, clock, settings)
        played.until(RolloutPhase.DONE)
        wait_until(lambda: receiver.taken == PROMOTED)
        journal.retire("shop")
    # What came last is still told at the end.
    assert receiver.taken == [*PROMOTED, "deployment.down"]


def test_outbox__receiver_added_while_it_runs__gets_what_waited_once(
    journal: Journal, clock: ManualClock, path: Path, receiver: Receiver
) -> None:
    clock.advance(time.time() - clock.wall())
    with outbox_of(path) as running:
        Played(journal, clock).until(RolloutPhase.DONE)
        for _ in range(2):
            running.add(sinks_of(receiver.url))
        wait_until(lambda: receiver.taken == PROMOTED)
    assert receiver.taken == PROMOTED


def test_outbox__many_receivers_hang__shutdown_waits_once(
    journal: Journal, clock: ManualClock, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "_LAST_SECONDS", 0.5)
    clock.advance(time.time() - clock.wall())
    before = threading.active_count()
    with socket.create_server(("127.0.0.1", 0), backlog=20) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        settings = DeploymentSettings(webhooks=tuple(f"{url}/{number}" for number in range(20)))
        with outbox_of(path, *settings.webhooks):
            Played(journal, clock, settings)
            taken = [server.accept()[0] for _ in settings.webhooks]
            begun = time.monotonic()
        assert time.monotonic() - begun < 5.0
        for connection in taken:
            connection.close()
    wait_until(lambda: threading.active_count() <= before, what="the threads end")
