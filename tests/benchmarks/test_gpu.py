"""The batching curve on the CPU, and the engines on a GPU where there is one."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu import BATCHES, PROVIDERS, gain, measure_curve, runs_of
from benchmarks.workloads import make_workload


def test_gain__curve__compares_one_batch_with_single_rows() -> None:
    assert gain({1: 0.001, 64: 0.002}) == pytest.approx(32)


def test_curve__cpu__has_every_batch_size(tmp_path: Path) -> None:
    workload = make_workload("tiny", tmp_path / "model")
    (run,) = runs_of(workload, "cpu").values()
    np.testing.assert_allclose(run(workload.row), workload.answer, atol=1e-5)
    curve = measure_curve(run, workload.row)
    assert tuple(curve) == BATCHES
    assert min(curve.values()) > 0


@pytest.mark.gpu
@pytest.mark.parametrize("provider", [each for each in PROVIDERS if each != "cpu"])
def test_engines__gpu__answer_as_the_cpu(tmp_path: Path, provider: str) -> None:
    workload = make_workload("tiny", tmp_path / "model")
    for run in runs_of(workload, provider).values():
        for _ in range(3):  # captured, then replayed
            np.testing.assert_allclose(run(workload.row), workload.answer, atol=1e-2)
