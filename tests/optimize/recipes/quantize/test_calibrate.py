"""Calibration: in bounded memory, whatever the division of the rows, and kept in the store."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from bundle.home import HOME_VARIABLE
from optimize.data import Rows, Tensors
from optimize.recipes.base import Calibrator
from optimize.recipes.quantize import calibrate
from optimize.recipes.quantize.calibrate import (
    BATCH,
    Calibration,
    observed_counts,
    observed_ranges,
    observer,
    rows_digest,
)
from optimize.recipes.quantize.thresholds import ValueRange
from tests.optimize.recipes.quantize.nets import Shelf, conv_net, image_rows, product_net, workbench

TENSORS = ("x", "b1", "d", "e", "h")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))


@pytest.mark.parametrize("calibrator", [each for each in Calibrator if each != Calibrator.AUTO])
def test_calibration__rows_in_chunks__equal_all_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calibrator: Calibrator
) -> None:
    source = conv_net(tmp_path / "net", hard=True)
    rows = image_rows(21)
    chunks = Calibration(source, TENSORS, workbench(source, rows)).ranges(calibrator)
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "another"))
    monkeypatch.setattr(calibrate, "BATCH", 1000)
    whole = Calibration(source, TENSORS, workbench(source, rows)).ranges(calibrator)
    assert list(chunks) == list(TENSORS)
    # The runtime itself may round differently for another number of rows.
    for name, bounds in whole.items():
        assert chunks[name].low == pytest.approx(bounds.low, rel=1e-5)
        assert chunks[name].high == pytest.approx(bounds.high, rel=1e-5)


def test_calibration__divided_values__give_equal_ranges_and_counts() -> None:
    values = np.random.default_rng(1).normal(size=(40, 7)).astype(np.float32)
    whole = observed_ranges([{"t": values}])
    parts = [{"t": part} for part in np.split(values, [3, 11, 30])]
    assert observed_ranges(parts) == whole == {"t": ValueRange(values.min(), values.max())}
    assert (
        observed_counts(parts, whole)["t"] == observed_counts([{"t": values}], whole)["t"]
    ).all()


def test_calibration__tensors_not_finite_fp32__are_left_out() -> None:
    good = np.ones(3, np.float32)
    batches: list[Tensors] = [
        {"fine": good, "ids": np.ones(3, np.int64), "mask": good, "none": good[:0]},
        {"fine": -good, "ids": np.ones(3, np.int64), "mask": good * -np.inf, "none": good[:0]},
    ]
    assert observed_ranges(batches) == {"fine": ValueRange(-1.0, 1.0)}


def test_calibration__many_rows__memory_is_bounded_by_one_batch(tmp_path: Path) -> None:
    source = product_net(tmp_path / "net", hard=False)
    tensors = ("x", "r1", "r2", "r3")
    tokens, width = 256, 16 + 3 * 32
    values = np.random.default_rng(2).normal(size=(64 * BATCH, tokens, 16)).astype(np.float32)
    batch = BATCH * tokens * width * 4
    bench = workbench(source, Rows({"x": values}, None))
    tracemalloc.start()
    Calibration(source, tensors, bench).ranges(Calibrator.PERCENTILE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # All activations would be 64 batches.
    assert peak < 12 * batch


def test_calibration__both_passes__are_cached_by_rows_graph_and_tensors(tmp_path: Path) -> None:
    source, store = conv_net(tmp_path / "net", hard=False), Shelf()
    rows = image_rows()

    def ranges(
        source: Path, tensors: tuple[str, ...], rows: Rows, calibrator: Calibrator
    ) -> list[str]:
        store.made.clear()
        bench = workbench(source, rows, store=store)
        Calibration(source, tensors, bench).ranges(calibrator)
        return [kind.removeprefix("calibration ") for kind in store.made]

    assert ranges(source, TENSORS, rows, Calibrator.MINMAX) == ["ranges"]
    assert ranges(source, TENSORS, rows, Calibrator.ENTROPY) == ["histograms"]
    assert ranges(source, TENSORS, rows, Calibrator.PERCENTILE) == []
    assert ranges(source, TENSORS[:2], rows, Calibrator.MINMAX) == ["ranges"]
    assert ranges(source, TENSORS, image_rows(9), Calibrator.MINMAX) == ["ranges"]
    other = conv_net(tmp_path / "other", hard=True)
    assert ranges(other, TENSORS, rows, Calibrator.MINMAX) == ["ranges"]


def test_rows_digest__covers_values_types_and_shapes() -> None:
    base = np.arange(6, dtype=np.int64)
    found = {
        rows_digest(Rows(inputs, None))
        for inputs in (
            {"a": base},
            {"b": base},
            {"a": base + 1},
            {"a": base.astype(np.float64)},
            {"a": base.reshape(2, 3)},
            {"a": np.array([b"x", b"y"], object)},
            {"a": np.array([b"x", b"z"], object)},
        )
    }
    assert len(found) == 7
    assert rows_digest(Rows({"a": base.copy()}, None)) in found


def test_observer__external_data__is_read(tmp_path: Path) -> None:
    values = []
    for external in (False, True):
        source = conv_net(tmp_path / str(external), hard=False, external=external)
        scratch = tmp_path / f"scratch-{external}"
        scratch.mkdir()
        values.append(observer(source, TENSORS, scratch)(image_rows(3).inputs))
    assert set(values[0]) == set(TENSORS)
    for name in TENSORS:
        np.testing.assert_array_equal(values[0][name], values[1][name])
