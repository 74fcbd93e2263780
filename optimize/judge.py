"""Measuring one variant with the very session that will serve it.

Rows are evaluated in batches as large as the server may join them; a model whose
rows influence each other is evaluated one row at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bundle.clock import Clock
from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import MODEL_NAME
from optimize.data import Rows, Tensors
from optimize.latency import BATCHES, measure
from optimize.parity import accuracy, compare, is_scores
from optimize.recipes.base import DATA_NAME
from optimize.variant import Measured
from services.session import open_session

MAX_BATCH = 32

Runner = Callable[[Tensors], dict[str, np.ndarray]]

# A slow model is judged on fewer rows, so that one variant takes seconds and not minutes.
_ROW_SECONDS = 3.0
_MIN_ROWS = 32


@dataclass(frozen=True, slots=True)
class Baseline:
    """The source model's answers `outputs` on the held-out `rows`."""

    rows: Rows
    outputs: Tensors
    row_independent: bool

    @property
    def batch(self) -> int:
        return MAX_BATCH if self.row_independent else 1

    def accuracy(self) -> float | None:
        """The source model's accuracy; None without labels."""
        return labelled_accuracy(self.outputs, self.rows)


def measure_variant(directory: Path, opset: int, baseline: Baseline, clock: Clock) -> Measured:
    """Run the model in `directory` and compare it with the baseline.

    ValueError says that its outputs are not finite or differ in form.
    """
    session = open_session(directory / MODEL_NAME)
    outputs = run_rows(session.run, baseline.rows, baseline.batch)
    parity = compare(baseline.outputs, outputs)
    before, after = baseline.accuracy(), labelled_accuracy(outputs, baseline.rows)
    drop = None if before is None or after is None else round(before - after, 12)
    batches = BATCHES if baseline.row_independent else (1,)
    return Measured(
        rows=baseline.rows.count,
        opset=opset,
        size_bytes=model_size(directory),
        parity=parity,
        accuracy=after,
        accuracy_drop=drop,
        latency=measure(session, baseline.rows, batches, clock),
    )


def run_rows(run: Runner, rows: Rows, batch: int) -> dict[str, np.ndarray]:
    """The outputs for all rows, computed `batch` rows at a time."""
    return _joined([run(part.inputs) for part in _batches(rows, batch)])


def run_rows_within(run: Runner, rows: Rows, batch: int, clock: Clock) -> dict[str, np.ndarray]:
    """The outputs for as many of the first rows as a few seconds allow, at least 32 of them."""
    start = clock.monotonic()
    parts: list[dict[str, np.ndarray]] = []
    done = 0
    for part in _batches(rows, batch):
        if done >= _MIN_ROWS and clock.monotonic() - start > _ROW_SECONDS:
            break
        parts.append(run(part.inputs))
        done += part.count
    return _joined(parts)


def _batches(rows: Rows, batch: int) -> Iterator[Rows]:
    for start in range(0, rows.count, batch):
        yield rows.take(np.arange(start, min(start + batch, rows.count)))


def _joined(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def labelled_accuracy(outputs: Tensors, rows: Rows) -> float | None:
    """Accuracy of the first output against the labels; None if there are none.

    INVALID_INPUT if the output has no score for each class, or a label has no score.
    """
    if rows.labels is None:
        return None
    name, scores = next(iter(outputs.items()))
    if not is_scores(scores):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"labels were given, but output {name!r} of shape {list(scores.shape)} "
            "does not hold one score for each class",
            "Leave the labels out: variants are then judged by parity with the source model.",
        )
    low, high = int(rows.labels.min()), int(rows.labels.max())
    if low < 0 or high >= scores.shape[1]:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"labels range from {low} to {high}, but the model has {scores.shape[1]} classes",
            "Labels are class numbers, from 0.",
        )
    return accuracy(scores, rows.labels)


def model_size(directory: Path) -> int:
    """Bytes of the model file and its data file."""
    paths = (directory / MODEL_NAME, directory / DATA_NAME)
    return sum(path.stat().st_size for path in paths if path.is_file())
