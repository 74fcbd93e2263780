from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from bundle.clock import ManualClock
from optimize.data import Rows
from optimize.judge import run_rows
from optimize.metrics.latency import measure, summarize
from tests.support.sessions import FunctionSession


class Model:
    """Takes a fixed time per row on a clock of its own; one run in ten takes twice as long."""

    def __init__(self, seconds_per_row: float) -> None:
        self.clock = ManualClock()
        self.batches: list[int] = []
        self._seconds = seconds_per_row

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        rows = len(inputs["x"])
        self.batches.append(rows)
        outlier = 2.0 if len(self.batches) % 10 == 0 else 1.0
        self.clock.advance(self._seconds * rows * outlier)
        return {"y": inputs["x"]}


BATCHES = (1, 8, 32)
ROWS = Rows({"x": np.arange(500.0)[:, None]}, None)


def test_a_fast_model_is_measured_often_and_outliers_do_not_move_the_median() -> None:
    model = Model(1e-4)
    found = measure(FunctionSession(model), ROWS, BATCHES, model.clock)
    assert [batch.batch for batch in found] == [1, 8, 32]
    for batch in found:
        assert batch.runs >= 30
        assert batch.median_ms == pytest.approx(0.1 * batch.batch)
        assert batch.q1_ms <= batch.median_ms <= batch.q3_ms <= batch.p95_ms
        assert batch.rows_per_second == pytest.approx(10_000)


def test_a_model_of_50_ms_per_row_is_measured_in_seconds() -> None:
    model = Model(0.05)
    found = measure(FunctionSession(model), ROWS, BATCHES, model.clock)
    assert model.clock.monotonic() < 9.0
    assert [batch.runs for batch in found][2] >= 1
    assert found[0].runs >= 5


def test_the_numbers_are_those_of_the_runs() -> None:
    found = summarize(1, [0.001, 0.002, 0.003, 0.004, 0.005])
    assert (found.median_ms, found.q1_ms, found.q3_ms) == (3.0, 2.0, 4.0)
    assert found.p95_ms == pytest.approx(4.8)


def test_rows_are_run_in_batches_and_in_order() -> None:
    model = Model(0.0)
    outputs = run_rows(model, ROWS, 32)
    np.testing.assert_array_equal(outputs["y"], ROWS.inputs["x"])
    assert model.batches == [32] * 15 + [20]
