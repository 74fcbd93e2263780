"""The batching curve's arithmetic and drawing; what a GPU does is for a GPU."""

from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from benchmarks.gpu import BATCHES, PROVIDERS, draw, gain, measure_curve, runs_of
from benchmarks.workloads import make_workload

SVG = "{http://www.w3.org/2000/svg}"


def test_the_gain_is_one_pass_against_many() -> None:
    assert gain({1: 0.001, 64: 0.002}) == pytest.approx(32)


def test_each_curve_is_drawn_with_a_point_for_each_size() -> None:
    curve = {batch: 0.001 * batch**0.2 for batch in BATCHES}
    image = ET.fromstring(draw({"one": curve, "other": curve}, "a title"))
    assert len(image.findall(f"{SVG}polyline")) == 2
    assert len(image.findall(f"{SVG}circle")) == 2 * len(BATCHES)


def test_a_curve_has_every_size(tmp_path: Path) -> None:
    workload = make_workload("tiny", tmp_path / "model")
    (run,) = runs_of(workload, "cpu").values()
    np.testing.assert_allclose(run(workload.row), workload.answer, atol=1e-5)
    curve = measure_curve(run, workload.row)
    assert tuple(curve) == BATCHES
    assert min(curve.values()) > 0


@pytest.mark.gpu
@pytest.mark.parametrize("provider", [each for each in PROVIDERS if each != "cpu"])
def test_a_gpu_answers_the_same(tmp_path: Path, provider: str) -> None:
    workload = make_workload("tiny", tmp_path / "model")
    for run in runs_of(workload, provider).values():
        for _ in range(3):  # captured, then replayed
            np.testing.assert_allclose(run(workload.row), workload.answer, atol=1e-2)
