from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from mlctl.optimize.data import Rows
from mlctl.optimize.metrics.latency import BatchLatency, measure_interleaved, time_ratio
from mlctl.optimize.proofs.baseline import run_rows
from tests.support.clock import ManualClock
from tests.support.sessions import FunctionSession


class Model:
    """Takes a fixed time per row on a common clock, times the machine's present `slowness`."""

    def __init__(self, seconds_per_row: float, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.batches: list[int] = []
        self._seconds = seconds_per_row

    def slowness(self) -> float:
        return 2.0 if len(self.batches) % 10 == 0 else 1.0

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        rows = len(inputs["x"])
        self.batches.append(rows)
        self.clock.advance(self._seconds * rows * self.slowness())
        return {"y": inputs["x"]}


class Drifting(Model):
    """A model on a machine that gets slower all the time."""

    def slowness(self) -> float:
        return 1.0 + self.clock.monotonic()


BATCHES = (1, 8, 32)
ROWS = Rows({"x": np.arange(500.0)[:, None]}, None)


def measure(**models: Model) -> dict[str, tuple[BatchLatency, ...]]:
    clock = next(iter(models.values())).clock
    sessions = {name: FunctionSession(model) for name, model in models.items()}
    return measure_interleaved(sessions, dict.fromkeys(models, BATCHES), ROWS, clock, 0.05)


def test_measure__a_fast_model__runs_often_and_outliers_do_not_move_the_median() -> None:
    found = measure(model=Model(1e-4))["model"]
    assert [batch.batch for batch in found] == [1, 8, 32]
    for batch in found:
        assert batch.runs >= 15
        assert batch.median_ms == pytest.approx(0.1 * batch.batch)
        assert batch.q1_ms <= batch.median_ms <= batch.q3_ms <= batch.p95_ms
        assert batch.rows_per_second == pytest.approx(10_000)


def test_measure__50_ms_per_row__ends_within_seconds() -> None:
    model = Model(0.05)
    found = measure(model=model)["model"]
    assert model.clock.monotonic() < 15.0
    assert found[2].runs >= 3
    assert found[0].runs >= 5


def test_measure__a_machine_that_slows_down__compares_within_rounds() -> None:
    clock = ManualClock()
    found = measure(one=Drifting(1e-3, clock), other=Drifting(1.3e-3, clock))
    for one, other in zip(found["one"], found["other"], strict=True):
        assert one.runs == other.runs
        ratio = time_ratio(other, one)
        assert ratio.median == pytest.approx(1.3, rel=0.05)
        assert ratio.low > 1.05


def test_measure__equal_variants__end_before_the_time_limit() -> None:
    clock = ManualClock()
    measure(one=Model(1e-3, clock), other=Model(1e-3, clock))
    assert clock.monotonic() < 2 * len(BATCHES)


def test_percentiles__of_five_samples__are_interpolated() -> None:
    found = BatchLatency(1, (1.0, 2.0, 3.0, 4.0, 5.0))
    assert (found.median_ms, found.q1_ms, found.q3_ms) == (3.0, 2.0, 4.0)
    assert found.p95_ms == pytest.approx(4.8)


def test_time_ratio__of_two_batch_sizes__is_per_row_and_paired() -> None:
    # Both slow down together: unpaired, their ranges overlap.
    slow = BatchLatency(8, tuple(8 * 1.5 * factor for factor in (1, 2, 4, 8)))
    fast = BatchLatency(1, (1.0, 2.0, 4.0, 8.0))
    ratio = time_ratio(slow, fast)
    assert (ratio.low, ratio.median, ratio.high) == (1.5, 1.5, 1.5)


def test_run_rows__any_rows__runs_batches_in_order() -> None:
    model = Model(0.0)
    outputs = run_rows(model, ROWS, 32)
    np.testing.assert_array_equal(outputs["y"], ROWS.inputs["x"])
    assert model.batches == [32] * 15 + [20]


class BusyMachine(ManualClock):
    """A clock on which other programs take most of the time, and none of this thread's."""

    def thread(self) -> float:
        return self.monotonic() / 10.0


@pytest.mark.parametrize(("provider", "expected"), [("cpu", 0.1), ("cuda", 1.0)])
def test_measure__busy_machine__a_session_on_the_cpu_is_timed_by_its_thread(
    provider: str, expected: float
) -> None:
    model = Model(1e-3, BusyMachine())
    session = FunctionSession(model)
    session.provider = provider
    found = measure_interleaved({"model": session}, {"model": (1,)}, ROWS, model.clock, 0.05)
    assert found["model"][0].median_ms == pytest.approx(expected)


class StandingClock(ManualClock):
    """A thread's clock that stands still, as one on a virtual machine can for a run."""

    def thread(self) -> float:
        return 0.0


def test_measure__clock_of_a_thread_stands_still__is_a_time_above_zero() -> None:
    clock = StandingClock()
    sessions = {name: FunctionSession(Model(1e-3, clock)) for name in ("fp32", "int8")}
    for session in sessions.values():
        session.provider = "cpu"
    found = measure_interleaved(sessions, dict.fromkeys(sessions, (1,)), ROWS, clock, 0.05)
    assert {latency.median_ms for (latency,) in found.values()} == {1e-6}
