"""Answers to messages: decode, score and encode them together, and find the faulty ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import numpy as np

from mlctl.bundle.arrays import Arrays
from mlctl.core.clock import Clock, SystemClock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.model.run_errors import is_out_of_memory
from mlctl.services.stream.base import Decoded, Payload
from mlctl.services.tables.bisect import score_rows

_TOMBSTONE = "the message has no value: it is a tombstone, which deletes its key"
# Errors that pass: a message never becomes a dead letter because of them.
TRANSIENT = frozenset(
    {
        ErrorCode.BROKER_UNAVAILABLE,
        ErrorCode.DEADLINE_EXCEEDED,
        ErrorCode.DISK_FULL,
        ErrorCode.QUEUE_FULL,
        ErrorCode.REGISTRY_UNAVAILABLE,
        ErrorCode.SINK_UNAVAILABLE,
        ErrorCode.SOURCE_UNAVAILABLE,
        ErrorCode.UNAVAILABLE,
    }
)


class StreamScorer(Protocol):
    """The part of mlctl.services.model.scorer.Scorer that streams use."""

    joinable: bool
    max_rows: int

    def check(self, inputs: Arrays) -> int: ...

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]: ...


class OutOfMemoryError(MlctlError):
    """The runtime had not enough memory for a batch; a smaller one may fit."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.UNAVAILABLE, "the model does not have enough memory for a batch")


class Fault(NamedTuple):
    """Why a message cannot be answered."""

    code: ErrorCode
    reason: str


@dataclass(slots=True)
class BatchAnswers:
    """The result of a batch: a value or None by index, faults by index, and seconds by stage."""

    values: list[bytes | None]
    faults: dict[int, Fault] = field(default_factory=dict)
    rows: int = 0
    stages: dict[str, float] = field(default_factory=dict)


class MessageScorer:
    """Scores messages of one payload format with one model; for one thread at a time."""

    def __init__(self, model: StreamScorer, payload: Payload, clock: Clock | None = None) -> None:
        self._model = model
        self._payload = payload
        self._clock = clock or SystemClock()

    def answer(self, values: Sequence[bytes | None], max_faults: int | None = None) -> BatchAnswers:
        """Return an answer or a fault for each of `values`; None, a tombstone, is a fault.

        TooManyError as soon as the model fails on more than `max_faults` of them. After an
        MlctlError whose code is in TRANSIENT the call may be repeated; other errors are not
        caused by the messages.
        """
        found = BatchAnswers([None] * len(values))
        began = self._clock.monotonic()
        # No payload format has a message without bytes, so that each is rejected.
        groups = self._payload.decode([value or b"" for value in values])
        decoded = self._clock.monotonic()
        found.stages = {"decode": decoded - began, "score": 0.0}
        for group in groups:
            for index, why in group.rejected.items():
                reason = _TOMBSTONE if values[index] is None else why
                found.faults[index] = Fault(ErrorCode.INVALID_INPUT, reason)
            if group.kept:
                self._answer_group(group, found, max_faults)
        found.stages["encode"] = self._clock.monotonic() - decoded - found.stages["score"]
        return found

    def shrink(self) -> bool:
        """Halve the rows of a call; return False if they cannot be fewer."""
        smaller = self._model.max_rows // 2
        if not self._model.joinable or not smaller:
            return False
        self._model.max_rows = smaller
        return True

    def _answer_group(self, group: Decoded, found: BatchAnswers, max_faults: int | None) -> None:
        began = self._clock.monotonic()
        run = _Run(self._model, group)
        scored = score_rows(run, {"message": np.arange(len(group.kept))}, max_faults)
        found.stages["score"] += self._clock.monotonic() - began
        for (position, why), code in zip(scored.reasons.items(), run.codes, strict=True):
            found.faults[group.kept[position]] = Fault(code, why)
        if scored.outputs is None:
            return
        found.rows += sum(group.rows)
        kept, rows, carried = group.kept, group.rows, group.carried
        if scored.reasons:
            good = scored.rows.tolist()
            kept, rows = [kept[i] for i in good], [rows[i] for i in good]
            carried = [carried[i] for i in good] if carried else ()
        for index, value in self._encoded(scored.outputs, kept, rows, carried, found.faults):
            found.values[index] = value

    def _encoded(
        self,
        outputs: Arrays,
        kept: Sequence[int],
        rows: Sequence[int],
        carried: Sequence[Any],
        faults: dict[int, Fault],
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the values of scored messages with their index in the batch.

        If the format cannot represent one of them, each is encoded alone.
        """
        try:
            yield from zip(kept, self._payload.encode(outputs, rows, carried), strict=True)
        except MlctlError as error:
            if error.code in TRANSIENT:
                raise
            if len(kept) == 1:
                faults[kept[0]] = Fault(error.code, error.message)
                return
            ends = [0, *accumulate(rows)]
            for at, index in enumerate(kept):
                part = {name: array[ends[at] : ends[at + 1]] for name, array in outputs.items()}
                one = carried[at : at + 1]
                yield from self._encoded(part, [index], [rows[at]], one, faults)


class _Run:
    """Runs the model on consecutive messages of a group; `codes` are of single failed messages."""

    def __init__(self, model: StreamScorer, group: Decoded) -> None:
        self.codes: list[ErrorCode] = []
        self._model = model
        self._inputs = group.inputs
        self._starts = [0, *accumulate(group.rows)]

    def __call__(self, messages: Arrays) -> dict[str, np.ndarray]:
        first, count = int(messages["message"][0]), len(messages["message"])
        try:
            if self._model.joinable:
                return self._call(first, first + count)
            # The rows of such a model depend on each other: one call for each message.
            parts = [self._call(each, each + 1) for each in range(first, first + count)]
            return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        except MlctlError as error:
            if error.code is ErrorCode.INTERNAL and is_out_of_memory(error):
                raise OutOfMemoryError from error
            if count == 1:
                self.codes.append(error.code)
            raise

    def _call(self, first: int, last: int) -> dict[str, np.ndarray]:
        begin, end = self._starts[first], self._starts[last]
        part = {name: array[begin:end] for name, array in self._inputs.items()}
        self._model.check(part)
        return self._model.run(part)
