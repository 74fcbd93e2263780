"""Messages to answers: decoded, scored and encoded as one, and the faulty ones found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import numpy as np

from bundle.clock import Clock, SystemClock
from bundle.errors import ErrorCode, MlctlError
from services.runtime.bisect import Scored, score_rows
from services.runtime.run_errors import is_out_of_memory
from services.stream.base import Decoded, Payload

Arrays = Mapping[str, np.ndarray]
# Worth another try: a message is never a dead letter because of them.
PASSING = frozenset(
    {
        ErrorCode.BROKER_UNAVAILABLE,
        ErrorCode.DEADLINE_EXCEEDED,
        ErrorCode.DISK_FULL,
        ErrorCode.QUEUE_FULL,
        ErrorCode.REGISTRY_UNAVAILABLE,
        ErrorCode.SINK_UNAVAILABLE,
        ErrorCode.UNAVAILABLE,
    }
)


class StreamScorer(Protocol):
    """What is asked of services.runtime.scorer.Scorer."""

    joinable: bool
    max_rows: int

    def check(self, inputs: Arrays) -> int: ...

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]: ...


class NoMemoryError(MlctlError):
    """The runtime had not enough memory for a batch: a smaller one may do."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.UNAVAILABLE, "the model has not enough memory for a batch")


class Fault(NamedTuple):
    """Why a message has no answer."""

    code: ErrorCode
    sentence: str


@dataclass(slots=True)
class Answers:
    """What became of a batch: by index a value or None, faults by index, and seconds."""

    values: list[bytes | None]
    faults: dict[int, Fault] = field(default_factory=dict)
    rows: int = 0
    decode_s: float = 0.0
    score_s: float = 0.0
    encode_s: float = 0.0


class MessageScorer:
    """Answers messages of one payload with one model; for one thread at a time."""

    def __init__(self, model: StreamScorer, payload: Payload, clock: Clock | None = None) -> None:
        self._model = model
        self._payload = payload
        self._clock = clock or SystemClock()

    def answer(self, values: Sequence[bytes], most: int | None = None) -> Answers:
        """An answer or a fault for each of `values`.

        TooManyError as soon as the model fails on more than `most` of them. An MlctlError
        whose code is in PASSING is worth another try; any other is not of the messages.
        """
        found = Answers([None] * len(values))
        began = self._clock.monotonic()
        groups = self._payload.decode(values)
        decoded = self._clock.monotonic()
        found.decode_s = decoded - began
        for group in groups:
            for index, why in group.rejected.items():
                found.faults[index] = Fault(ErrorCode.INVALID_INPUT, why)
            if group.kept:
                self._answer_group(group, found, most)
        found.encode_s = self._clock.monotonic() - decoded - found.score_s
        return found

    def shrink(self) -> bool:
        """After a lack of memory: smaller calls from now on, if they can be smaller."""
        smaller = self._model.max_rows // 2
        if not self._model.joinable or not smaller:
            return False
        self._model.max_rows = smaller
        return True

    def _answer_group(self, group: Decoded, found: Answers, most: int | None) -> None:
        began = self._clock.monotonic()
        run = _Run(self._model, group)
        scored = score_rows(run, {"message": np.arange(len(group.kept))}, most)
        found.score_s += self._clock.monotonic() - began
        for (place, why), code in zip(scored.reasons.items(), run.codes, strict=True):
            found.faults[group.kept[place]] = Fault(code, why)
        if scored.outputs is None:
            return
        found.rows += sum(group.rows)
        for index, value in self._encoded(group, scored, found.faults):
            found.values[index] = value

    def _encoded(
        self, group: Decoded, scored: Scored, faults: dict[int, Fault]
    ) -> Iterator[tuple[int, bytes]]:
        """The values of the messages that were scored, by their index in the batch."""
        assert scored.outputs is not None
        kept, rows, carried = group.kept, group.rows, group.carried
        if scored.reasons:
            good = scored.rows.tolist()
            kept, rows = [kept[i] for i in good], [rows[i] for i in good]
            carried = [carried[i] for i in good] if carried else ()
        try:
            yield from zip(kept, self._payload.encode(scored.outputs, rows, carried), strict=True)
        except MlctlError as error:
            if error.code in PASSING:
                raise
            yield from self._encoded_alone(scored.outputs, kept, rows, carried, faults)

    def _encoded_alone(
        self,
        outputs: Arrays,
        kept: Sequence[int],
        rows: Sequence[int],
        carried: Sequence[Any],
        faults: dict[int, Fault],
    ) -> Iterator[tuple[int, bytes]]:
        first = 0
        for place, (index, count) in enumerate(zip(kept, rows, strict=True)):
            part = {name: array[first : first + count] for name, array in outputs.items()}
            first += count
            try:
                about = [carried[place]] if carried else ()
                (value,) = self._payload.encode(part, [count], about)
                yield index, value
            except MlctlError as error:
                if error.code in PASSING:
                    raise
                faults[index] = Fault(error.code, error.message)


class _Run:
    """Calls the model for consecutive messages of a group; `codes` of those that failed alone."""

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
            # Rows of such a model answer for each other: each message is asked alone.
            parts = [self._call(each, each + 1) for each in range(first, first + count)]
            return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        except MlctlError as error:
            if error.code is ErrorCode.INTERNAL and is_out_of_memory(error):
                raise NoMemoryError from error
            if count == 1:
                self.codes.append(error.code)
            raise

    def _call(self, first: int, last: int) -> dict[str, np.ndarray]:
        begin, end = self._starts[first], self._starts[last]
        part = {name: array[begin:end] for name, array in self._inputs.items()}
        self._model.check(part)
        return self._model.run(part)
