"""The source model's answers, which its variants are compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mlctl.bundle.manifest import Batching
from mlctl.optimize.data import Rows, Tensors
from mlctl.optimize.inputs.batching import DEFAULT, BatchingOptions
from mlctl.optimize.metrics.scores import Metric
from mlctl.services.model.scorer import join_rows, split_rows

Runner = Callable[[Tensors], dict[str, np.ndarray]]


@dataclass(frozen=True)
class Baseline:
    """The source model's answers `outputs` on the held-out `rows`; `metric` if they have labels."""

    rows: Rows
    outputs: Tensors
    row_independent: bool
    metric: Metric | None
    batching_options: BatchingOptions = DEFAULT

    @property
    def batching(self) -> Batching:
        return self.batching_options.batching(row_independent=self.row_independent)

    @cached_property
    def score(self) -> float | None:
        """The source model's own score; INVALID_INPUT if the metric does not fit its outputs."""
        labels = self.labels
        if self.metric is None or labels is None:
            return None
        return self.metric.score(self.outputs, labels)

    @property
    def labels(self) -> np.ndarray | None:
        """What the metric takes as labels of the rows; None without a metric or labels."""
        return None if self.metric is None else self.metric.labels_of(self.rows)


def run_rows(run: Runner, rows: Rows, batch: int) -> dict[str, np.ndarray]:
    """Return the outputs for all rows, computed `batch` rows at a time."""
    return join_rows([run(part) for part in split_rows(rows.inputs, batch)])
