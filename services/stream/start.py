"""`mlctl stream run`: put a model, a payload format and a connection together, and run them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.layout.scorable import Scorable, check_batched, open_scorable
from mlctl.services.stream.answer_headers import AnswerHeaders
from mlctl.services.stream.base import (
    ConnectionRequest,
    Guarantee,
    Payload,
    StreamConnection,
    StreamUrl,
)
from mlctl.services.stream.engine import RunSettings, StreamEngine, StreamReport
from mlctl.services.stream.events import StreamEvent
from mlctl.services.stream.payloads import PayloadRequest, open_payload
from mlctl.services.stream.scoring import MessageScorer
from mlctl.services.stream.transports import transport_of
from mlctl.services.stream.transports.bridge import connect

_SENTENCES = {
    Guarantee.EXACTLY_ONCE: "each message is answered exactly once, also after kills",
    Guarantee.AT_LEAST_ONCE: "no message is lost; after a kill some are answered again, with the "
    "same mlctl-source header",
}


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """A run: its streams, its payload format and its settings."""

    connection: ConnectionRequest
    payload: PayloadRequest = field(default_factory=PayloadRequest)
    settings: RunSettings = field(default_factory=RunSettings)


def default_dead(source: StreamUrl) -> StreamUrl:
    """Return the default stream of dead letters: beside the source."""
    if source.topic:
        return source.with_topic(f"{source.topic}.dead")
    if source.scheme == "file":
        return StreamUrl("file", f"{source.address}.dead")
    transport_of(source)  # its error for an unknown scheme says more
    raise MlctlError(
        ErrorCode.INVALID_INPUT,
        f"there is no default stream of dead letters beside {source.redacted()}",
        "Name one: --dead dead.jsonl.",
    )


def guarantee_text(connection: StreamConnection, source: StreamUrl) -> str:
    """Return the run's guarantee as a sentence."""
    if source.scheme == "-":
        return "A pipe is read once: messages that were read and not answered are lost after a kill"
    return f"{connection.guarantee.value.capitalize()}: {_SENTENCES[connection.guarantee]}"


def _payload(config: StreamConfig, model: Scorable) -> Payload:
    request = replace(config.payload, missing=model.missing)
    answers = config.connection.answers
    if answers and request.name != "json" and transport_of(answers).answers_only:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"--payload {request.name}: only JSON answers can go to {answers.redacted()}",
        )
    return open_payload(request, model.signature)


def run_stream(
    model: Scorable,
    config: StreamConfig,
    on_event: Callable[[StreamEvent], None],
    stop: threading.Event,
    on_open: Callable[[StreamConnection], None] = lambda _connection: None,
) -> StreamReport:
    """Run until there is an end or `stop` is set; `on_open` is called before the first poll.

    See StreamEngine.run for errors. The calling thread, which receives signals, owns the
    connection.
    """
    check_batched(model)
    payload = _payload(config, model)
    connection = connect(config.connection)
    scorer = MessageScorer(open_scorable(model), payload)
    headers = AnswerHeaders(config.connection.source, model.name, model.digest)
    with connection:
        on_open(connection)
        return StreamEngine(connection, scorer, headers, config.settings, on_event, stop).run()
