"""Judging one variant with the very session that will serve it.

Rows are evaluated in batches as large as the server may join them; a model whose
rows influence each other is evaluated one row at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from bundle.clock import Clock
from bundle.manifest import MODEL_NAME, Batching
from optimize.batching import DEFAULT, BatchingOptions
from optimize.data import Rows, Tensors
from optimize.device import RunDevice
from optimize.goals import Goals, accuracy_faults
from optimize.metrics.latency import measure
from optimize.metrics.parity import Parity, compare, finite
from optimize.metrics.scores import Metric, compare_metric
from optimize.proofs.batch_contamination import MOST_ROWS, keep_company
from optimize.recipes.base import DATA_NAME, TWIN_NAME, Details, Quality
from optimize.variant import Measured
from services.runtime.scorer import join_rows, split_rows
from services.runtime.session import Session, open_session

# Of what the goals allow, a search on calibration rows uses up this share: it stops right
# below its limit, and the held-out rows that judge afterwards are other rows.
SEARCH_SHARE = 0.8

Runner = Callable[[Tensors], dict[str, np.ndarray]]


@dataclass(frozen=True)
class Baseline:
    """The source model's answers `outputs` on the held-out `rows`; `metric` if they have labels.

    `joining` is what the user says of the batches to serve with.
    """

    rows: Rows
    outputs: Tensors
    row_independent: bool
    metric: Metric | None
    joining: BatchingOptions = DEFAULT

    @property
    def batching(self) -> Batching:
        return self.joining.batching(row_independent=self.row_independent)

    @cached_property
    def score(self) -> float | None:
        """The source model's own score; INVALID_INPUT if the metric does not fit its outputs."""
        if self.metric is None or self.rows.labels is None:
            return None
        return self.metric.score(self.outputs, self.rows.labels)


def measure_variant(
    directory: Path,
    opset: int,
    details: Details,
    baseline: Baseline,
    place: RunDevice,
    clock: Clock,
) -> Measured:
    """Run the model in `directory` and compare it with the baseline.

    It is judged and timed with the batch sizes that it may be served with. ValueError
    says that its outputs are not finite or differ in form.
    """
    model = _runnable(directory, place)
    session = open_session(model, place.provider, batching=_roomy(baseline.batching))
    outputs, joined, independent = _answers(session, baseline)
    parity, score = compare(baseline.outputs, outputs), None
    if baseline.metric is not None and baseline.rows.labels is not None:
        score = compare_metric(baseline.metric, baseline.outputs, outputs, baseline.rows.labels)
    buckets = baseline.joining.batching(row_independent=independent).buckets
    sizes = sorted({1, *buckets})  # a goal is the time of a single row, whatever the buckets
    return Measured(
        rows=baseline.rows.count,
        opset=opset,
        size_bytes=model_size(directory),
        parity=parity,
        score=score,
        latency=measure(session, baseline.rows, sizes, clock) if place.timed else (),
        details=details,
        provider=place.provider,
        emulated=model.name == TWIN_NAME,
        row_independent=independent,
        joined_relative_l2=joined,
    )


def _roomy(batching: Batching) -> Batching:
    """The same batches for an engine to be tuned for, and room for rows next to a strange one."""
    most = max(batching.max_rows, MOST_ROWS if batching.row_independent else 1)
    return batching.model_copy(update={"max_rows": most})


def _answers(
    session: Session, baseline: Baseline
) -> tuple[dict[str, np.ndarray], float | None, bool]:
    """Answers as they will be served, the error next to strange rows, whether rows may be joined.

    A variant of a model with independent rows may have lost that; it then answers one
    row at a time.
    """
    outputs = run_rows(session.run, baseline.rows, baseline.batching.max_rows)
    if not baseline.row_independent:
        return outputs, None, False
    stated = compare(baseline.outputs, outputs).relative_l2
    company = keep_company(session.run, baseline.rows, baseline.outputs)
    independent = company.harmless(stated)
    if not independent:
        outputs = run_rows(session.run, baseline.rows, 1)
    return outputs, company.joined, independent


@dataclass(frozen=True)
class QualityMeter:
    """Compares graphs with the fp32 `graph` on calibration rows, for a recipe's search.

    The gate will look at the upper bound of the drop on `judging_rows` other rows; so a
    search that looked at the drop alone would stop where the gate then refuses. The bound
    that so many rows like these would have is found by repeating them.
    """

    graph: Path
    rows: Rows
    max_rows: int
    metric: Metric | None
    goals: Goals
    judging_rows: int = 0

    def __call__(self, directory: Path) -> Quality:
        outputs = self._answers(directory / MODEL_NAME)
        if not finite(outputs):
            return Quality(math.inf, good=False, words="answers are NaN or infinite")
        parity = compare(self._reference, outputs)
        drop = self._drop(outputs)
        fault = next(accuracy_faults(parity, drop, self.goals, SEARCH_SHARE), None)
        return Quality(parity.relative_l2, fault is None, fault or _words(parity, drop))

    @cached_property
    def _reference(self) -> dict[str, np.ndarray]:
        return self._answers(self.graph)

    def _answers(self, model: Path) -> dict[str, np.ndarray]:
        return run_rows(open_session(model).run, self.rows, self.max_rows)

    def _drop(self, outputs: Tensors) -> float | None:
        labels = self.rows.labels
        if self.metric is None or labels is None:
            return None
        index = np.arange(max(self.rows.count, self.judging_rows)) % self.rows.count
        before, after = (
            {name: array[index] for name, array in each.items()}
            for each in (self._reference, outputs)
        )
        return compare_metric(self.metric, before, after, labels[index]).drop.high


def run_rows(run: Runner, rows: Rows, batch: int) -> dict[str, np.ndarray]:
    """The outputs for all rows, computed `batch` rows at a time."""
    return join_rows([run(part) for part in split_rows(rows.inputs, batch)])


def model_size(directory: Path) -> int:
    """Bytes of the model file and its data file."""
    paths = (directory / MODEL_NAME, directory / DATA_NAME)
    return sum(path.stat().st_size for path in paths if path.is_file())


def _runnable(directory: Path, place: RunDevice) -> Path:
    """The variant itself, or its twin where only the CPU is there and has no kernels for it."""
    twin = directory / TWIN_NAME
    return directory / MODEL_NAME if place.timed or not twin.is_file() else twin


def _words(parity: Parity, drop: float | None) -> str:
    return (
        f"centred cosine {parity.centred_cosine:.4g}"
        if drop is None
        else f"accuracy drop at most {drop:.4g}"
    )
