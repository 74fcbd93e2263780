"""Answers as HTTP requests: `https://HOST/PATH`, one POST for each answer.

The header `idempotency-key` is the id of the message, the same each time the message is answered:
a receiver that stores it can drop a repeated answer. Answers with the same key are sent one after
the other, others at the same time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self
from urllib.parse import quote, urlencode

import httpx

from mlctl import __version__
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.stream.answer_headers import DIGEST, MODEL, SOURCE, headers_of_answer
from mlctl.services.stream.base import (
    Outgoing,
    RejectedAnswersError,
    RetryLaterError,
    StreamUrl,
    Transport,
)

TOKEN_VARIABLE = "MLCTL_WEBHOOK_TOKEN"  # noqa: S105 - its name
_CONNECTIONS = 16
_ANSWER_SECONDS = 10.0
# Statuses that are about one answer: bad request, too large, wrong media type, invalid content.
_REJECTED = frozenset({400, 413, 415, 422})
# Statuses after which the same request may succeed: timeout, conflict, too early, too many.
_TRANSIENT = frozenset({408, 409, 425, 429})


class WebhookProducer:
    """Sends the answers of a run to one URL."""

    def __init__(self, url: StreamUrl, token: str | None) -> None:
        self._shown = url.redacted()
        query = f"?{urlencode(url.options)}" if url.options else ""
        self._url = f"{url.scheme}://{url.address}{query}"
        headers = {"content-type": "application/json", "user-agent": f"mlctl/{__version__}"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        self._client = httpx.Client(
            headers=headers,
            timeout=_ANSWER_SECONDS,
            limits=httpx.Limits(max_connections=_CONNECTIONS),
            follow_redirects=False,
        )
        self._threads = ThreadPoolExecutor(_CONNECTIONS, "mlctl-webhook")
        # Why answers were rejected, or None if they were accepted, by their ids; of one batch.
        self._settled: dict[bytes, str | None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self._threads.shutdown()
        self._client.close()

    def publish(self, messages: Sequence[Outgoing]) -> None:
        """Send each message; return when all are accepted.

        RetryLaterError: a repeated call sends only those that were neither accepted nor rejected.
        RejectedAnswersError for those that the receiver rejects for good. INVALID_INPUT for a
        status that is about the URL or the token.
        """
        rejected: dict[int, str] = {}
        errors: list[MlctlError] = []

        def send(group: Iterable[tuple[int, Outgoing]]) -> None:
            for index, message in group:
                # Neither wait for a receiver that is away once per message, nor send an answer
                # before an earlier one with its key.
                if errors:
                    return
                headers = headers_of_answer(message, self._shown)
                source = headers[SOURCE]
                try:
                    if source not in self._settled:
                        self._settled[source] = self._send(message, headers)
                except MlctlError as error:
                    errors.append(error)
                    return
                if (reason := self._settled[source]) is not None:
                    rejected[index] = reason

        # Consume the results: an unexpected error is raised here.
        for _done in self._threads.map(send, _by_key(messages)):
            pass
        if errors:
            # A permanent one first, else the one with the longest pause.
            raise max(errors, key=lambda each: getattr(each, "retry_after", float("inf")))
        if rejected:
            raise RejectedAnswersError(ErrorCode.INVALID_INPUT, rejected)
        self._settled.clear()

    def _send(self, message: Outgoing, headers: Mapping[str, bytes]) -> str | None:
        """Send one answer; return the reason if the receiver rejects it for good."""
        sent = {name: quote(headers[name], safe=":/ ") for name in (SOURCE, DIGEST, MODEL)}
        sent["idempotency-key"] = sent[SOURCE]
        if message.key is not None:
            sent["mlctl-key"] = quote(message.key)
        try:
            response = self._client.post(self._url, content=message.value, headers=sent)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RetryLaterError(f"{self._shown}: {type(error).__name__}") from error
        status = response.status_code
        if 200 <= status < 300:
            return None
        if status in _REJECTED:
            return f"{self._shown} answered HTTP {status}"
        if status in _TRANSIENT or status >= 500:
            pause = response.headers.get("retry-after", "")  # dates are rare, and ignored
            seconds = float(pause) if pause.isdecimal() else 0.0
            raise RetryLaterError(f"{self._shown} answered HTTP {status}", seconds)
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{self._shown} answered HTTP {status}",
            f"Check the URL and {TOKEN_VARIABLE}; redirects are not followed.",
        )


class WebhookTransport(Transport):
    """A destination of answers."""

    answers_only = True

    def open_producer(self, url: StreamUrl) -> WebhookProducer:
        return WebhookProducer(url, os.environ.get(TOKEN_VARIABLE))


transport = WebhookTransport()


def _by_key(messages: Sequence[Outgoing]) -> list[list[tuple[int, Outgoing]]]:
    """Return the messages, with their indices, in groups of equal keys."""
    groups: dict[object, list[tuple[int, Outgoing]]] = {}
    for index, message in enumerate(messages):
        key: object = index if message.key is None else message.key
        groups.setdefault(key, []).append((index, message))
    return [*groups.values()]
