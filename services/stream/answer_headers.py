"""What answers and dead letters say of their source: their headers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from services.stream.base import Headers, Message, Outgoing, StreamUrl
from services.stream.scoring import Answers, Fault

SOURCE, DIGEST, MODEL, STAGES = "mlctl-source", "mlctl-digest", "mlctl-model", "mlctl-stages"
ERROR, REASON, ATTEMPTS = "mlctl-error", "mlctl-reason", "mlctl-attempts"
OURS = "mlctl-"
_REASON_BYTES = 2000


class AnswerHeaders:
    """Makes the messages that go out, for one source and one model."""

    def __init__(self, source: StreamUrl, model: str, digest: str) -> None:
        name = source.topic or source.address.rpartition("/")[2]
        self._name = f"{source.scheme}:{name}"
        self._model: Headers = ((DIGEST, digest.encode()), (MODEL, model.encode()))

    def answers(self, messages: Sequence[Message], found: Answers) -> list[Outgoing]:
        """An answer for each message that has one. `mlctl-stages` are milliseconds of the batch."""
        stages = (
            f"decode={1e3 * found.decode_s:.2f} score={1e3 * found.score_s:.2f} "
            f"encode={1e3 * found.encode_s:.2f} messages={len(messages)}"
        )
        shared: Headers = (*self._model, (STAGES, stages.encode()))
        sources = self._sources(messages)
        return [
            Outgoing(value, message.key, (*shared, (SOURCE, source.encode())))
            for message, source, value in zip(messages, sources, found.values, strict=True)
            if value is not None
        ]

    def dead(self, messages: Sequence[Message], faults: Mapping[int, Fault]) -> list[Outgoing]:
        """The messages at fault as they came, with what is wrong, in the order of the batch."""
        order = sorted(faults)
        sources = self._sources([messages[index] for index in order])
        return [
            Outgoing(
                messages[index].value,
                messages[index].key,
                (*_foreign(messages[index].headers), *_why(messages[index], faults[index], source)),
            )
            for index, source in zip(order, sources, strict=True)
        ]

    def _sources(self, messages: Sequence[Message]) -> list[str]:
        """SCHEME:TOPIC/PARTITION/OFFSET of each."""
        name = self._name
        return [f"{name}/{message.partition}/{message.offset}" for message in messages]


def _foreign(headers: Headers) -> Headers:
    return tuple(header for header in headers if not header[0].startswith(OURS))


def _why(message: Message, fault: Fault, source: str) -> Headers:
    """`mlctl-attempts` goes on counting from a message that was redriven."""
    before = dict(message.headers).get(ATTEMPTS, b"0")
    attempts = int(before) + 1 if before.isdigit() and len(before) < 10 else 1
    return (
        (ERROR, fault.code.value.encode()),
        (REASON, fault.sentence.encode(errors="replace")[:_REASON_BYTES]),
        (ATTEMPTS, b"%d" % attempts),
        (SOURCE, source.encode()),
    )
