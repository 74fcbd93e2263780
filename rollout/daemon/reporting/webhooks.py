"""Notices sent to webhooks, beside the rollout's ticks: each at least once, in order, signed.

The form of a delivery is that of standardwebhooks.com. What is not taken is tried again after
pauses that double, for a day; the place in the journal is kept, so a crash loses nothing.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sys
import threading
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from bundle import __version__
from bundle.clock import Clock, SystemClock
from rollout.daemon.reporting.cursors import Cursor, EventCursors
from rollout.daemon.reporting.notices import KINDS, notice
from rollout.domain.spec import DeploymentSettings
from rollout.journal.records import JournalEvent

MAX_AGE_SECONDS = 86_400.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
_IDLE_SECONDS = 0.5
_ANSWER_SECONDS = 10.0
_LAST_SECONDS = 3.0
_BROKEN_SECONDS = 30.0
# The receiver does not want this very document, now or later.
_REFUSED = frozenset({400, 413, 422})
_PREFIX = "whsec_"


class DeliveryError(Exception):
    """A delivery failed. `again_in` is what the receiver asked for, in seconds."""

    def __init__(self, why: str, again_in: float = 0.0) -> None:
        super().__init__(why)
        self.again_in = again_in


def reader_of(url: str) -> str:
    """The name of a webhook's place in the journal; the URL may be a secret."""
    return f"webhook:{hashlib.sha256(url.encode()).hexdigest()[:16]}"


def host_of(url: str) -> str:
    """What may be shown of a webhook's URL."""
    return urlsplit(url).hostname or ""


def signature(secret: str, notice_id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`. A secret is text, or base64 after `whsec_`."""
    if secret.startswith(_PREFIX):
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    else:
        key = secret.encode()
    signed = f"{notice_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()


class Webhook:
    """One receiver of the notices of the deployment `name`. `close` it when done."""

    def __init__(
        self, name: str, url: str, secret: Path | None, journal: Path, clock: Clock
    ) -> None:
        self._name = name
        self._url = url
        self._secret = secret
        self._clock = clock
        self._reader = reader_of(url)
        self._cursors = EventCursors(journal)
        self._client = httpx.Client(timeout=_ANSWER_SECONDS, follow_redirects=False)
        self._failures = 0
        # Up to here there is nothing to tell but what `place` is behind of.
        self._place = self._cursors.cursor(name, self._reader) or Cursor(self._cursors.start(name))
        self._searched = self._place.seq

    def close(self) -> None:
        self._client.close()
        self._cursors.__exit__(None, None, None)

    def step(self) -> float:
        """Send what there is, as far as it is taken; the seconds until the next call."""
        until = self._cursors.last()
        for event in self._cursors.events(self._name, self._searched, until, KINDS):
            try:
                self._deliver(event)
            except DeliveryError as error:
                return self._failed(error)
            self._searched = event.seq
            self._failures = 0
            self._keep(Cursor(event.seq, {"delivered": self._clock.wall()}))
        self._searched = until
        return _IDLE_SECONDS

    def _deliver(self, event: JournalEvent) -> None:
        document = notice(event)
        if document is None:
            return
        if self._clock.wall() - event.at > MAX_AGE_SECONDS:
            self._log(f"given up after a day: {document['type']} of event {event.seq}")
            return
        try:
            delivery = self._delivery(document)
        except (OSError, ValueError) as error:
            raise DeliveryError("the secret cannot be read") from error
        try:
            answer = self._client.post(self._url, **delivery)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise DeliveryError(type(error).__name__) from error
        if answer.status_code in _REFUSED:
            self._log(f"HTTP {answer.status_code} for {document['type']} of event {event.seq}")
        elif not answer.is_success:
            raise DeliveryError(f"HTTP {answer.status_code}", _retry_after(answer))

    def _delivery(self, document: dict[str, Any]) -> dict[str, Any]:
        body = json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
        sent = int(self._clock.wall())
        headers = {
            "content-type": "application/json",
            "user-agent": f"mlctl/{__version__}",
            "webhook-id": document["id"],
            "webhook-timestamp": str(sent),
        }
        if self._secret is not None:
            secret = self._secret.read_text().strip()
            if not secret:
                raise ValueError("the secret is empty")
            headers["webhook-signature"] = signature(secret, document["id"], sent, body)
        return {"content": body, "headers": headers}

    def _failed(self, error: DeliveryError) -> float:
        self._failures += 1
        doubled = FIRST_PAUSE * 2.0 ** min(self._failures - 1, 16)
        pause = min(max(doubled, error.again_in), LONGEST_PAUSE)
        body = {"failures": self._failures, "error": str(error)}
        self._keep(Cursor(self._place.seq, body))
        if self._failures == 1:
            self._log(f"{error}; it is tried again")
        return pause

    def _keep(self, place: Cursor) -> None:
        self._place = place
        self._cursors.put(self._name, self._reader, place)

    def _log(self, text: str) -> None:
        print(f"webhook {host_of(self._url)}: {text}", file=sys.stderr, flush=True)


def _retry_after(answer: httpx.Response) -> float:
    """Seconds from the header; 0 without one, or with a date."""
    text = answer.headers.get("retry-after", "")
    return float(text) if text.isdecimal() else 0.0


class Webhooks:
    """All webhooks of a deployment, each in a thread, so that a slow one holds up no other.

    At the end each sends what it still can: that the deployment was taken down, for one.
    """

    def __init__(self, name: str, settings: DeploymentSettings, journal: Path) -> None:
        self._name = name
        self._secret = Path(settings.webhook_secret) if settings.webhook_secret else None
        self._journal = journal
        self._stop = threading.Event()
        # Daemon threads: an answer that does not come must not hold up the daemon's end.
        self._threads = [
            threading.Thread(target=self._run, args=(url,), daemon=True)
            for url in dict.fromkeys(settings.webhooks)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        deadline = time.monotonic() + _LAST_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self, url: str) -> None:
        while not self._stop.is_set():
            try:
                self._watch(url)
            except Exception:  # noqa: BLE001 - notices must go on after one bad moment; it is logged
                traceback.print_exc()
                self._stop.wait(_BROKEN_SECONDS)

    def _watch(self, url: str) -> None:
        hook = Webhook(self._name, url, self._secret, self._journal, SystemClock())
        try:
            while not self._stop.wait(hook.step()):
                pass
            hook.step()
        finally:
            hook.close()
