"""Answers of a run by the position of their messages, to compare two runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import orjson

from bundle.errors import ErrorCode, MlctlError
from services.stream.answer_headers import DIGEST, SOURCE
from services.stream.base import Message, StreamUrl
from services.stream.transports import transport_of

Answer = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class RecordedAnswers:
    """`answers` by `mlctl-source`, None for a dead letter; `digests` are of their models."""

    answers: dict[str, Answer | None] = field(default_factory=dict)
    digests: set[str] = field(default_factory=set)


def read_answers(answers: StreamUrl, dead: StreamUrl | None, last: int) -> RecordedAnswers:
    """Return the `last` answers of a stream, and the dead letters at `dead` if there are any.

    INVALID_INPUT for answers that are not JSON objects, or not written by a run.
    """
    found = RecordedAnswers()
    for message in transport_of(answers).browse(answers, last=last):
        source, digest = _header(message, SOURCE), _header(message, DIGEST)
        found.answers[source] = _outputs(message.value)
        found.digests.add(digest)
    for letter in [] if dead is None else _letters(dead, last):
        found.answers.setdefault(_header(letter, SOURCE), None)
    return found


def _letters(dead: StreamUrl, last: int) -> list[Message]:
    try:
        return [*transport_of(dead).browse(dead, last=last)]
    except MlctlError as error:
        if error.code is not ErrorCode.NOT_FOUND:
            raise
        return []  # The stream is created by the first dead letter.


def _header(message: Message, name: str) -> str:
    for key, value in message.headers:
        if key == name:
            return value.decode(errors="replace")
    raise MlctlError(
        ErrorCode.INVALID_INPUT,
        f"a message has no header {name}: it was not written by `mlctl stream run`",
    )


def _outputs(value: bytes) -> Answer:
    try:
        document = orjson.loads(value)
        return {str(name): np.asarray(each) for name, each in document.items()}
    except (orjson.JSONDecodeError, AttributeError, ValueError) as error:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            "an answer is not a JSON object of outputs",
            "Only streams with --payload json can be compared.",
        ) from error
