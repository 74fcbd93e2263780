"""A variant's answers next to strange rows, with real quantized graphs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from optimize.data import Rows
from optimize.metrics.parity import compare
from optimize.proofs.batch_contamination import Company, Run, keep_company
from optimize.recipes.base import Calibrator
from optimize.recipes.quantize.edit import read_graph
from optimize.recipes.quantize.form import QuantForm
from optimize.recipes.quantize.layers import WEIGHTED, find_layers
from optimize.recipes.quantize.methods import Dynamic, Static
from optimize.recipes.quantize.observe import observer, seen_ranges
from services.runtime.session import open_session
from tests.optimize.recipes.quantize.nets import product_net, token_rows

ROWS = token_rows(16)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return product_net(tmp_path_factory.mktemp("net"), hard=False)


@pytest.fixture(scope="module")
def answers(source: Path) -> Mapping[str, np.ndarray]:
    return open_session(source).run(ROWS.inputs)


def judged(run: Run, answers: Mapping[str, np.ndarray]) -> tuple[Company, bool]:
    company = keep_company(run, ROWS, answers)
    return company, company.harmless(compare(answers, run(ROWS.inputs)).relative_l2)


def test_the_source_itself_keeps_any_company(
    source: Path, answers: Mapping[str, np.ndarray]
) -> None:
    company, harmless = judged(open_session(source).run, answers)
    assert harmless
    assert company.joined < 1e-6


def test_one_scale_for_a_whole_batch_lets_a_stranger_take_the_digits(
    source: Path, answers: Mapping[str, np.ndarray], tmp_path: Path
) -> None:
    layers = find_layers(read_graph(source, data=False).graph, ("MatMul",))
    Dynamic(source, layers).write((), tmp_path)
    company, harmless = judged(open_session(tmp_path / "model.onnx").run, answers)
    assert not harmless
    assert company.alone < 0.05
    assert company.joined > 0.5


def test_scales_from_calibration_know_no_neighbours(
    source: Path, answers: Mapping[str, np.ndarray], tmp_path: Path
) -> None:
    layers = find_layers(read_graph(source, data=False).graph, WEIGHTED)
    tensors = [name for layer in layers for name in layer.activations]
    ranges = seen_ranges([observer(source, tensors, tmp_path)(ROWS.inputs)])
    form = QuantForm("s8", WEIGHTED)
    Static(source, layers, form, Calibrator.MINMAX, ranges).write((), tmp_path)
    company, harmless = judged(open_session(tmp_path / "model.onnx").run, answers)
    assert harmless
    assert company.joined == pytest.approx(company.alone, rel=0.05)


def test_a_row_that_is_refused_proves_nothing_and_one_that_breaks_others_does() -> None:
    rows = Rows({"x": np.arange(8, dtype=np.float32).reshape(8, 1) + 1}, None)

    def refusing(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if np.abs(inputs["x"]).max() > 100:
            raise RuntimeError("out of range")
        return {"y": inputs["x"] * 2}

    def breaking(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        bad = np.float32(np.nan if np.abs(inputs["x"]).max() > 100 else 2)
        return {"y": inputs["x"] * bad}

    wanted = {"y": rows.inputs["x"] * 2}
    assert keep_company(refusing, rows, wanted) == Company(0.0, 0.0)
    broken = keep_company(breaking, rows, wanted)
    assert broken.joined == 1e9
    assert not broken.harmless(stated=1.0)


@pytest.mark.parametrize(
    ("joined", "stated", "harmless"),
    [(0.19, 0.1, True), (0.21, 0.1, False), (9e-4, 0.0, True), (2e-3, 0.0, False)],
)
def test_twice_the_stated_error_is_the_limit(joined: float, stated: float, harmless: bool) -> None:
    assert Company(0.0, joined).harmless(stated) is harmless
    assert Company(stated, joined).harmless(0.0) is harmless
