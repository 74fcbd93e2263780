"""Judge and time variants with the sessions that will serve them.

Rows are evaluated in batches as large as the server may form; a model whose rows depend on
each other is evaluated one row at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from mlctl.bundle.manifest import MODEL_NAME, Batching
from mlctl.core.clock import Clock
from mlctl.core.quiet import first_line
from mlctl.optimize.data import Rows, Tensors
from mlctl.optimize.metrics.latency import measure_interleaved
from mlctl.optimize.metrics.parity import Parity, compare, finite
from mlctl.optimize.metrics.scores import Metric, MetricResult, compare_metric
from mlctl.optimize.proofs.baseline import Baseline, run_rows
from mlctl.optimize.proofs.batch_contamination import MAX_ROWS, measure_contamination
from mlctl.optimize.recipes.base import DATA_NAME, Details, Quality
from mlctl.optimize.variants.device import RunDevice
from mlctl.optimize.variants.goals import Goals, accuracy_faults
from mlctl.optimize.variants.variant import Measured, Timings, Variant
from mlctl.services.model.session import Session, open_session

# A search on calibration rows may use this share of what the goals allow: it stops just below
# its limit, and other rows judge afterwards.
SEARCH_SHARE = 0.8


def measure_variant(
    directory: Path, opset: int, details: Details, baseline: Baseline, device: RunDevice
) -> Measured:
    """Run the model in `directory` and compare it with the baseline, without timing it.

    ValueError if its outputs are not finite or have other names or shapes.
    """
    batching = _with_room(baseline.batching)
    session = open_session(directory / MODEL_NAME, device.provider, batching=batching)
    outputs, contaminated, independent = _answers(session, baseline)
    parity, score = compare(baseline.outputs, outputs), None
    if baseline.metric is not None and baseline.labels is not None:
        score = compare_metric(baseline.metric, baseline.outputs, outputs, baseline.labels)
    return Measured(
        rows=baseline.rows.count,
        opset=opset,
        size_bytes=model_size(directory),
        parity=parity,
        score=score,
        details=details,
        provider=device.provider,
        row_independent=independent,
        contaminated_relative_l2=contaminated,
    )


def time_variants(
    variants: Sequence[Variant],
    baseline: Baseline,
    device: RunDevice,
    clock: Clock,
    min_gain: float,
    opening: Callable[[str | None], None],
) -> Timings:
    """Time all measured variants together, each at the batch sizes that it may be served with.

    All their sessions are open at once. A variant that does not run its largest batch then, for
    lack of memory for example, is a failure. `opening` is called with each recipe before its
    session is opened, and with None when all are.
    """
    sessions: dict[str, Session] = {}
    sizes: dict[str, list[int]] = {}
    failures: dict[str, str] = {}
    for variant in variants:
        if variant.measured is None or variant.model is None:
            continue
        batching = baseline.batching_options.batching(
            row_independent=variant.measured.row_independent
        )
        opening(variant.recipe)
        try:
            model = variant.model / MODEL_NAME
            session = open_session(model, device.provider, batching=batching)
            session.run(
                baseline.rows.take(np.arange(batching.max_rows) % baseline.rows.count).inputs
            )
        except Exception as error:  # noqa: BLE001 - runtimes have no common exception
            failures[variant.recipe] = f"it does not run beside the others: {first_line(error)}"
            continue
        sessions[variant.recipe] = session
        # The latency goal is for a single row, also if no batch has one.
        sizes[variant.recipe] = sorted({1, *batching.buckets})
    opening(None)
    found = measure_interleaved(sessions, sizes, baseline.rows, clock, min_gain)
    return Timings(found, failures)


def _with_room(batching: Batching) -> Batching:
    """Return the same batching with room for the sample rows and an outlier."""
    rows = max(batching.max_rows, MAX_ROWS if batching.row_independent else 1)
    return batching.model_copy(update={"max_rows": rows})


def _answers(
    session: Session, baseline: Baseline
) -> tuple[dict[str, np.ndarray], float | None, bool]:
    """Return answers as they will be served, the error beside outliers, and row independence.

    A variant of a model with independent rows may have lost that; it then answers one
    row at a time.
    """
    outputs = run_rows(session.run, baseline.rows, baseline.batching.max_rows)
    if not baseline.row_independent:
        return outputs, None, False
    error = compare(baseline.outputs, outputs).relative_l2
    contamination = measure_contamination(session.run, baseline.rows, baseline.outputs)
    independent = contamination.harmless(error)
    if not independent:
        outputs = run_rows(session.run, baseline.rows, 1)
    return outputs, contamination.with_outlier, independent


@dataclass(frozen=True)
class QualityMeter:
    """Compares graphs with the fp32 `graph` on calibration rows, for a recipe's search.

    The gate will look at the upper bound of the drop on `judging_rows` other rows; a search
    that looked at the drop alone would stop at a graph that the gate then rejects. The
    bound for that many rows is found by repeating the calibration rows.
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
        score = self._score(outputs)
        fault = next(accuracy_faults(parity, score, self.goals, SEARCH_SHARE), None)
        return Quality(parity.relative_l2, fault is None, fault or _words(parity, score))

    @cached_property
    def _reference(self) -> dict[str, np.ndarray]:
        return self._answers(self.graph)

    def _answers(self, model: Path) -> dict[str, np.ndarray]:
        return run_rows(open_session(model).run, self.rows, self.max_rows)

    def _score(self, outputs: Tensors) -> MetricResult | None:
        labels = None if self.metric is None else self.metric.labels_of(self.rows)
        if self.metric is None or labels is None:
            return None
        index = np.arange(max(self.rows.count, self.judging_rows)) % self.rows.count
        before, after = (
            {name: array[index] for name, array in each.items()}
            for each in (self._reference, outputs)
        )
        return compare_metric(self.metric, before, after, labels[index])


def model_size(directory: Path) -> int:
    """Return the bytes of the model file and its data file."""
    paths = (directory / MODEL_NAME, directory / DATA_NAME)
    return sum(path.stat().st_size for path in paths if path.is_file())


def _words(parity: Parity, score: MetricResult | None) -> str:
    if score is None:
        return f"centred cosine {parity.centred_cosine:.4g}"
    return f"accuracy drop at most {score.drop.high:.4g}"
