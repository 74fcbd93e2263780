"""What the numbers of a model's output mean, and so what it means that two answers agree.

A signature says only `FP32[-1, 24]`. That may be the scores of 24 classes, where the highest one is
the answer, or a forecast of 24 hours, where the position of the highest value means nothing.
"""

from __future__ import annotations

import re
from enum import StrEnum

import numpy as np

# Rows have norm or sum 1 within what float16 arithmetic leaves of it.
_UNIT = 1e-3

# Scores within this share of the row's largest one are equal: float32 sums differ by as much.
_TIE = 1e-6

# Rows that show whether an output is a sequence of class scores: such outputs are large.
_SAMPLE_ROWS = 8

_SCORE_NAME = re.compile(r"logit|prob|score|class", re.IGNORECASE)
_NUMBER_NAME = re.compile(r"box|embed|forecast|predict|regress|hidden|vector", re.IGNORECASE)


class OutputKind(StrEnum):
    """How the answers in an output are compared."""

    CLASS_SCORES = "class scores"
    """[rows, classes]: two rows agree if the same class has the highest score, or one of equal
    scores: a forest whose votes are even has no top class."""
    CLASS_SEQUENCES = "sequences of class scores"
    """[rows, steps..., classes]: two rows agree if they have the same class at each step."""
    LABELS = "labels"
    """Integers, booleans, text: two rows agree if they are equal."""
    NUMBERS = "numbers"
    """Forecasts, boxes, embeddings: compared by distance only."""


def output_kind(name: str, array: np.ndarray) -> OutputKind:
    """Return the kind of the output `name` from answers of the source model, [rows, ...].

    Probabilities and rows of norm 1 (embeddings) are recognized by their values, then the
    name decides. Of other vectors those are class scores whose values compete within a row:
    the values of a forecast rise and fall together, the scores of classes do not. Sequences are
    recognized by probabilities, their logarithms, or the name: hidden states compete as well.
    """
    if not np.issubdtype(array.dtype, np.floating):
        return OutputKind.LABELS
    if array.ndim < 2 or array.shape[-1] < 2:
        return OutputKind.NUMBERS
    if array.ndim > 2:
        return OutputKind.CLASS_SEQUENCES if _are_steps(name, array) else OutputKind.NUMBERS
    values = array.astype(np.float64)
    if (values >= 0).all() and np.allclose(values.sum(axis=1), 1.0, rtol=0.0, atol=_UNIT):
        return OutputKind.CLASS_SCORES
    if np.allclose(np.linalg.norm(values, axis=1), 1.0, rtol=0.0, atol=_UNIT):
        return OutputKind.NUMBERS
    if _SCORE_NAME.search(name):
        return OutputKind.CLASS_SCORES
    if _NUMBER_NAME.search(name) or not _compete(values):
        return OutputKind.NUMBERS
    return OutputKind.CLASS_SCORES


def agreement(kind: OutputKind, reference: np.ndarray, found: np.ndarray) -> np.ndarray | None:
    """Return for each row whether `found` agrees with `reference`, bool [rows]; None for numbers.

    Both arrays have the same shape [rows, ...].
    """
    match kind:
        case OutputKind.CLASS_SCORES:
            return same_top_class(reference, found)
        case OutputKind.CLASS_SEQUENCES:
            return np.asarray(same_steps(reference, found).all(axis=1))
        case OutputKind.LABELS:
            equal = np.asarray(reference == found).reshape(len(reference), -1)
            return np.asarray(equal.all(axis=1))
        case OutputKind.NUMBERS:
            return None


def same_steps(reference: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Return for each step whether its top class is the same, bool [rows, steps].

    Both are scores [rows, steps..., classes]; all dimensions in the middle count as steps.
    """
    classes = reference.shape[-1]
    steps = same_top_class(reference.reshape(-1, classes), found.reshape(-1, classes))
    return steps.reshape(len(reference), -1)


def same_top_class(reference: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Return for each row whether the top class of `found` is one of `reference`, bool [rows].

    Both are scores [rows, classes]. Only equal scores of `reference` are a tie: a variant that
    makes different scores equal has lost a decision.
    """
    own = np.take_along_axis(reference, found.argmax(axis=1)[:, None], axis=1)[:, 0]
    highest = reference.max(axis=1)
    limit = _TIE * np.maximum(highest, -reference.min(axis=1))
    return np.asarray(highest - own <= limit)


def _are_steps(name: str, array: np.ndarray) -> bool:
    """Return whether each vector along the last axis of `array` holds the scores of classes."""
    values = array[:_SAMPLE_ROWS].astype(np.float64)
    scores = values if (values >= 0).all() else np.exp(values) if (values <= 0).all() else None
    if scores is not None and np.allclose(scores.sum(axis=-1), 1.0, rtol=0.0, atol=_UNIT):
        return True
    return bool(_SCORE_NAME.search(name)) and not _NUMBER_NAME.search(name)


def _compete(values: np.ndarray) -> bool:
    """Return whether less of the variance is common to a row than independent columns explain.

    The share of a row's mean in the variance of its values is 1 where all values move
    together, 1 / columns where they are independent, and 0 for scores that sum to a constant.
    """
    columns = values.shape[1]
    variance = float(values.var(axis=0).sum())
    if variance == 0.0:
        return True
    common = columns * float(values.mean(axis=1).var()) / variance
    return bool(common < (1.0 + 1.0 / columns) / 2.0)
