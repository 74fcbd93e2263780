"""Send notices to webhooks: each at least once, in order, signed, for a day.

The form of a delivery is that of standardwebhooks.com; the outbox retries what fails.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from mlctl import __version__
from mlctl.core.clock import Clock
from mlctl.rollout.daemon.reporting.notices import KINDS, notice
from mlctl.rollout.daemon.reporting.outbox import DeliveryError
from mlctl.rollout.domain.spec import DeploymentSettings
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.records import JournalEvent, Rollout

MAX_AGE_SECONDS = 86_400.0
_ANSWER_SECONDS = 10.0
# The receiver rejects this document for good.
_REJECTED = frozenset({400, 413, 422})
_PREFIX = "whsec_"


def sink_of(url: str) -> str:
    """Return the name of a webhook's sink; the URL may be a secret."""
    return f"webhook:{hashlib.sha256(url.encode()).hexdigest()[:16]}"


def host_of(url: str) -> str:
    """Return the part of a webhook's URL that may be shown."""
    return urlsplit(url).hostname or ""


def signature(secret: str, notice_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of `webhook-signature`. A secret is text, or base64 after `whsec_`."""
    if secret.startswith(_PREFIX):
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    else:
        key = secret.encode()
    signed = f"{notice_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()


def notified(
    settings: DeploymentSettings, rollouts: Iterable[Rollout], now: float
) -> tuple[str, ...]:
    """Return the URLs that get notices of a deployment: its webhooks, and those of its rollouts.

    Left out are rollouts that ended so long before `now` (wall-clock seconds) that none of their
    notices is sent any more.
    """
    urls = list(settings.webhooks)
    for rollout in rollouts:
        if rollout.outcome is None or now - rollout.progress.since < MAX_AGE_SECONDS:
            urls += rollout.spec.notifications
    return tuple(dict.fromkeys(urls))


class WebhookSink:
    """Sends the notices of the deployment `name` to one receiver.

    A webhook of its `settings` gets all, another URL those of the rollouts that name it. They are
    signed with the secret of `settings`.
    """

    def __init__(
        self, name: str, url: str, settings: DeploymentSettings, journal: Journal, clock: Clock
    ) -> None:
        self.name = sink_of(url)
        self._deployment = name
        self._url = url
        self._all = url in settings.webhooks
        self._secret = Path(settings.webhook_secret) if settings.webhook_secret else None
        self._journal = journal
        self._clock = clock
        self._client = httpx.Client(timeout=_ANSWER_SECONDS, follow_redirects=False)
        # Up to here the journal holds no notice that is not delivered.
        delivered = journal.delivery(name, self.name).seq
        begun = journal.newest(name, "up")
        self._searched = delivered or (begun.seq - 1 if begun else 0)

    def pending(self) -> str | None:
        return "" if self._journal.last_seq() > self._searched else None

    def deliver(self, after: int) -> Iterator[int]:
        until, searched = self._journal.last_seq(), max(after, self._searched)
        for event in self._journal.events_between(self._deployment, searched, until, KINDS):
            if self._all or self._names_this(event.rollout):
                self._send(event)
            self._searched = event.seq
            yield event.seq
        self._searched = until

    def close(self) -> None:
        self._client.close()

    def _names_this(self, rollout: int | None) -> bool:
        if rollout is None:
            return False
        return self._url in self._journal.rollout(rollout).spec.notifications

    def _send(self, event: JournalEvent) -> None:
        document = notice(event)
        if document is None:
            return
        if self._clock.wall() - event.at > MAX_AGE_SECONDS:
            self._log(f"given up after a day: {document['type']} of event {event.seq}")
            return
        try:
            request = self._request(document)
        except (OSError, ValueError) as error:
            raise DeliveryError("the secret cannot be read") from error
        try:
            answer = self._client.post(self._url, **request)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise DeliveryError(type(error).__name__) from error
        if answer.status_code in _REJECTED:
            self._log(f"HTTP {answer.status_code} for {document['type']} of event {event.seq}")
        elif not answer.is_success:
            raise DeliveryError(f"HTTP {answer.status_code}", _retry_after(answer))

    def _request(self, document: dict[str, Any]) -> dict[str, Any]:
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

    def _log(self, text: str) -> None:
        print(f"webhook {host_of(self._url)}: {text}", file=sys.stderr, flush=True)


def _retry_after(answer: httpx.Response) -> float:
    """Return the header's seconds; 0 without one, or with a date."""
    text = answer.headers.get("retry-after", "")
    return float(text) if text.isdecimal() else 0.0
