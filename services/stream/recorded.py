"""What a run wrote, by the position of its sources: for a comparison of two of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import orjson

from bundle.errors import ErrorCode, MlctlError
from services.stream.answer_headers import DIGEST, SOURCE
from services.stream.base import Message, StreamUrl
from services.stream.tools import browsable

Answer = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Answered:
    """`answers` by `mlctl-source`, None for a dead letter; `digests` are of who wrote them."""

    answers: dict[str, Answer | None] = field(default_factory=dict)
    digests: set[str] = field(default_factory=set)


def read_answered(answers: StreamUrl, dead: StreamUrl | None, last: int) -> Answered:
    """The `last` answers at a place, and the dead letters beside them if there are any.

    INVALID_INPUT for answers that are no JSON objects, or that no run of a stream has written.
    """
    found = Answered()
    for message in browsable(answers).browse(answers, last=last):
        source, digest = _header(message, SOURCE), _header(message, DIGEST)
        found.answers[source] = _outputs(message.value)
        found.digests.add(digest)
    for letter in [] if dead is None else _letters(dead, last):
        found.answers.setdefault(_header(letter, SOURCE), None)
    return found


def _letters(dead: StreamUrl, last: int) -> list[Message]:
    try:
        return [*browsable(dead).browse(dead, last=last)]
    except MlctlError as error:
        if error.code is not ErrorCode.NOT_FOUND:
            raise
        return []  # There was none yet.


def _header(message: Message, name: str) -> str:
    for key, value in message.headers:
        if key == name:
            return value.decode(errors="replace")
    raise MlctlError(
        ErrorCode.INVALID_INPUT, f"a message has no header {name}: no run of a stream wrote it"
    )


def _outputs(value: bytes) -> Answer:
    try:
        document = orjson.loads(value)
        return {str(name): np.asarray(each) for name, each in document.items()}
    except (orjson.JSONDecodeError, AttributeError, ValueError) as error:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            "an answer is no JSON object of outputs",
            "Only streams with --payload json can be compared.",
        ) from error
