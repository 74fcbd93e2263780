from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bundle.errors import ErrorCode, MlctlError
from bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from optimize.data import MAX_CALIBRATION_ROWS, Rows, load_data, split
from tests.support.sources import save_rows

SIGNATURE = Signature(
    inputs=(TensorSpec(name="image", dtype=Datatype.FP32, shape=(DYNAMIC, 2)),),
    outputs=(TensorSpec(name="y", dtype=Datatype.FP32, shape=(DYNAMIC, 3)),),
)
X = np.arange(80, dtype=np.float32).reshape(40, 2)
LABELS = np.repeat(np.arange(4), 10)


@pytest.mark.parametrize("key", ["image", "x", "inputs"])
@pytest.mark.parametrize("label_key", ["labels", "y"])
def test_a_single_input_may_be_called_x(tmp_path: Path, key: str, label_key: str) -> None:
    data = load_data(save_rows(tmp_path / "d.npz", {key: X, label_key: LABELS}), SIGNATURE)
    assert data.calibration.count + data.held_out.count == 40
    assert data.calibration.count == 10


def test_the_split_is_the_same_each_time_and_depends_on_the_content(tmp_path: Path) -> None:
    path = save_rows(tmp_path / "d.npz", {"x": X, "y": LABELS})
    first, again = load_data(path, SIGNATURE), load_data(path, SIGNATURE)
    assert first.sha256 == again.sha256
    np.testing.assert_array_equal(first.held_out.inputs["image"], again.held_out.inputs["image"])
    changed = X.copy()
    changed[0, 0] += 1
    other = load_data(save_rows(tmp_path / "e.npz", {"x": changed, "y": LABELS}), SIGNATURE)
    assert other.sha256 != first.sha256
    unlabelled = load_data(save_rows(tmp_path / "f.npz", {"x": X}), SIGNATURE)
    assert unlabelled.sha256 != first.sha256
    assert unlabelled.held_out.labels is None


def test_both_parts_hold_every_label_in_proportion() -> None:
    labels = np.array([0] * 300 + [1] * 100)
    rows = Rows({"x": np.arange(400)[:, None]}, labels)
    calibration, held_out = split(rows)
    assert calibration.labels is not None
    assert held_out.labels is not None
    assert calibration.count == 100
    assert np.bincount(calibration.labels).tolist() == [75, 25]
    assert np.bincount(held_out.head(100).labels).tolist() == [75, 25]  # type: ignore[arg-type]
    np.testing.assert_array_equal(labels[held_out.inputs["x"][:, 0]], held_out.labels)


def test_calibration_rows_are_limited() -> None:
    calibration, held_out = split(Rows({"x": np.zeros((5000, 1))}, None))
    assert calibration.count == MAX_CALIBRATION_ROWS
    assert held_out.count == 5000 - MAX_CALIBRATION_ROWS


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"z": X}, "no array for input 'image' in the data; it has: z"),
        ({"x": X.astype(np.float64)}, "datatype is FP64, expected FP32"),
        ({"x": X[:, :1]}, r"shape is \[40, 1\], expected \[-1, 2\]"),
        ({"x": X.astype(np.complex64)}, "has no V2 datatype"),
        ({"x": X, "y": LABELS[:-1]}, "different numbers of rows: image 40, labels 39"),
        ({"x": X, "y": LABELS.astype(np.float32)}, "must be integers"),
        ({"x": X, "y": LABELS[:, None]}, "must be integers of shape"),
        ({"x": X[:0]}, "has 0 rows, at least 8"),
        ({"x": np.full((9, 2), np.nan, np.float32)}, "NaN"),
    ],
)
def test_wrong_data_is_named(tmp_path: Path, arrays: dict[str, np.ndarray], reason: str) -> None:
    with pytest.raises(MlctlError, match=reason) as caught:
        load_data(save_rows(tmp_path / "d.npz", arrays), SIGNATURE)
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_a_file_that_is_no_npz_is_named(tmp_path: Path) -> None:
    with pytest.raises(MlctlError, match="there is no file"):
        load_data(tmp_path / "none.npz", SIGNATURE)
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(MlctlError, match="cannot be read"):
        load_data(tmp_path / "text.npz", SIGNATURE)
    (tmp_path / "cut.npz").write_bytes(
        save_rows(tmp_path / "whole.npz", {"x": X}).read_bytes()[:-50]
    )
    with pytest.raises(MlctlError, match="cannot be read"):
        load_data(tmp_path / "cut.npz", SIGNATURE)
    np.save(tmp_path / "one.npy", X)
    with pytest.raises(MlctlError, match="a single array"):
        load_data(tmp_path / "one.npy", SIGNATURE)


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    path = save_rows(tmp_path / "objects.npz", {"x": np.array([{}, 1], dtype=object)})
    with pytest.raises(MlctlError, match="holds pickled objects"):
        load_data(path, SIGNATURE)
