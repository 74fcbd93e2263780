"""A variant's answers beside outlier rows, with real quantized graphs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from mlctl.optimize.data import Rows
from mlctl.optimize.metrics.parity import compare
from mlctl.optimize.proofs.batch_contamination import Contamination, Run, measure_contamination
from mlctl.optimize.recipes.quantize.methods import dynamic_methods, static_methods
from mlctl.services.model.session import open_session
from tests.optimize.recipes.quantize.nets import product_net, token_rows

ROWS = token_rows(16)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return product_net(tmp_path_factory.mktemp("net"), hard=False)


@pytest.fixture(scope="module")
def answers(source: Path) -> Mapping[str, np.ndarray]:
    return open_session(source).run(ROWS.inputs)


def judged(run: Run, answers: Mapping[str, np.ndarray]) -> tuple[Contamination, bool]:
    contamination = measure_contamination(run, ROWS, answers)
    return contamination, contamination.harmless(compare(answers, run(ROWS.inputs)).relative_l2)


def test_contamination__of_the_source_itself__is_rounding(
    source: Path, answers: Mapping[str, np.ndarray]
) -> None:
    contamination, harmless = judged(open_session(source).run, answers)
    assert harmless
    assert contamination.with_outlier < 1e-6


def test_contamination__one_scale_for_a_whole_batch__is_found(
    source: Path, answers: Mapping[str, np.ndarray], tmp_path: Path
) -> None:
    next(dynamic_methods(source)).write((), tmp_path)
    contamination, harmless = judged(open_session(tmp_path / "model.onnx").run, answers)
    assert not harmless
    assert contamination.alone < 0.05
    assert contamination.with_outlier > 0.5


def test_contamination__static_scales__is_none(
    source: Path, answers: Mapping[str, np.ndarray], tmp_path: Path
) -> None:
    next(static_methods(source, ROWS, tmp_path, tensorrt=True)).write((), tmp_path)
    contamination, harmless = judged(open_session(tmp_path / "model.onnx").run, answers)
    assert harmless
    assert contamination.with_outlier == pytest.approx(contamination.alone, rel=0.05)


def test_contamination__rejected_or_broken_rows__only_the_broken_count() -> None:
    rows = Rows({"x": np.arange(8, dtype=np.float32).reshape(8, 1) + 1}, None)

    def rejecting(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if np.abs(inputs["x"]).max() > 100:
            raise RuntimeError("out of range")
        return {"y": inputs["x"] * 2}

    def breaking(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        bad = np.float32(np.nan if np.abs(inputs["x"]).max() > 100 else 2)
        return {"y": inputs["x"] * bad}

    expected = {"y": rows.inputs["x"] * 2}
    assert measure_contamination(rejecting, rows, expected) == Contamination(0.0, 0.0)
    broken = measure_contamination(breaking, rows, expected)
    assert broken.with_outlier == 1e9
    assert not broken.harmless(expected=1.0)


@pytest.mark.parametrize(
    ("with_outlier", "expected", "harmless"),
    [(0.19, 0.1, True), (0.21, 0.1, False), (9e-4, 0.0, True), (2e-3, 0.0, False)],
)
def test_harmless__twice_the_expected_error__is_the_limit(
    with_outlier: float, expected: float, harmless: bool
) -> None:
    assert Contamination(0.0, with_outlier).harmless(expected) is harmless
    assert Contamination(expected, with_outlier).harmless(0.0) is harmless
