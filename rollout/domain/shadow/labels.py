"""Labels that arrive later: how wrong an answer was, and labelled answers as trials. Pure.

One request is one trial, with the share of its labelled rows that are wrong. Labels arrive in any
order and all at once, so trials are laid out by the time of the answer: requests that were wrong
together count as one burst, whenever their labels came.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from mlctl.bundle.output_kinds import OutputKind
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.domain.spec import RolloutSpec
from mlctl.rollout.domain.statistics.bursts import NO_TRIALS, Trials
from mlctl.rollout.domain.statistics.verdict import Hits

LabelValue = str | float | bool | list[float]


@dataclass(frozen=True, slots=True)
class Label:
    """The true answer to one row of a request; `line` is where its file has it.

    `row` is None where the file names no row: the request then has only one.
    """

    request_id: str
    value: LabelValue
    line: int
    row: int | None = None


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far an answer is from its label, and the magnitude of the label.

    Class scores and labels are either right (0) or infinitely far. Numbers have the largest
    absolute difference.
    """

    error: float
    magnitude: float = 0.0


RIGHT, WRONG = Deviation(0.0), Deviation(math.inf)


@dataclass(frozen=True, slots=True)
class LabelledTrials:
    """All labelled answers of a rollout's two revisions so far."""

    candidate: Trials = field(default_factory=Trials)
    live: Trials = field(default_factory=Trials)


def deviation(kind: OutputKind, answer: np.ndarray, label: LabelValue) -> Deviation:
    """Compare one row's answer with its label; ValueError, in words, for a label of another kind.

    `answer` is [], [values] or [1, values]. For class scores the label is the number of the class,
    for sequences of them, [steps..., classes], the list of the class at each step.
    """
    match kind:
        case OutputKind.CLASS_SCORES:
            return _class_deviation(answer, label)
        case OutputKind.LABELS | OutputKind.CLASS_SEQUENCES:
            steps = kind is OutputKind.CLASS_SEQUENCES
            expected = (answer.argmax(axis=-1) if steps else answer).ravel().tolist()
            wanted = label if isinstance(label, list) else [label]
            if len(wanted) != len(expected):
                raise ValueError(f"{len(wanted)} values, the answer has {len(expected)}")
            pairs = zip(expected, wanted, strict=True)
            return RIGHT if all(_equal(ours, theirs) for ours, theirs in pairs) else WRONG
        case OutputKind.NUMBERS:
            wanted_values = _numbers(label)
            found = answer.astype(np.float64).ravel()
            if wanted_values.size != found.size:
                raise ValueError(f"{wanted_values.size} numbers, the answer has {found.size}")
            error = float(np.abs(found - wanted_values).max(initial=0.0))
            magnitude = float(np.abs(wanted_values).max(initial=0.0))
            return Deviation(error if math.isfinite(error) else math.inf, magnitude)


def _class_deviation(answer: np.ndarray, label: LabelValue) -> Deviation:
    values = _numbers(label)
    number = float(values[0]) if values.size == 1 else math.nan
    if not number.is_integer() or not 0 <= number < answer.size:
        raise ValueError(f"{label!r} is not a class: give its number, 0 to {answer.size - 1}")
    right = bool(np.isfinite(answer).all()) and int(answer.argmax()) == int(number)
    return RIGHT if right else WRONG


def _equal(answer: object, label: object) -> bool:
    """Return whether a label, which may be text of a CSV file, names this answer."""
    if isinstance(answer, str):
        return answer == str(label)
    if isinstance(answer, bool) and isinstance(label, str):
        return label.strip().lower() in (("true", "1") if answer else ("false", "0"))
    return float(_numbers(label)[0]) == float(answer)  # type: ignore[arg-type]


def _numbers(label: object) -> np.ndarray:
    try:
        values = np.asarray(label, dtype=np.float64).ravel()
    except (TypeError, ValueError):
        raise ValueError(f"{label!r} is not a number") from None
    if not np.isfinite(values).all():
        raise ValueError(f"{label!r} is not a finite number")
    return values


def trials(blocks: Iterable[Hits], spec: RolloutSpec) -> Trials:
    """Return (wrong, labelled) requests per block of `burst_seconds`, oldest first, as trials."""
    found = NO_TRIALS
    seconds, limit = spec.burst_seconds, spec.max_wrong or 1.0
    for wrong, requests in blocks:
        found = found.add(wrong, requests, seconds, burst=seconds, limit=limit)
    return found


def require_recording(spec: RolloutSpec, *, can_record: bool) -> None:
    """Raise INVALID_INPUT if live accuracy is limited and no server records its predictions."""
    if spec.min_accuracy is not None and not can_record:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            "live accuracy cannot be judged: this deployment's predictions are not recorded",
            "Leave --min-accuracy out. Predictions are recorded on this machine, not in a cluster, "
            "and not where MLCTL_SAMPLE_DIR is set.",
        )
