"""Names, checks, sampling and digest of evaluation data, whatever form it comes in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlctl.bundle.tensors import Datatype, MissingValues, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.data import RowLimits, Rows, Tensors, load_data, read_rows
from mlctl.optimize.data.rows import choose_rows
from mlctl.optimize.metrics.scores import METRICS, LabelKind, require_labels
from tests.support.eval_rows import TOKENS, Batches, save_parquet, signature
from tests.support.sources import save_rows

SIGNATURE = signature(2)
X = np.arange(80, dtype=np.float32).reshape(40, 2)
LABELS = np.repeat(np.arange(4), 10)
NAN = np.where(np.arange(80).reshape(40, 2) == 35, np.float32(np.nan), X)


@pytest.mark.parametrize("key", ["image", "x", "inputs"])
@pytest.mark.parametrize("label_key", ["labels", "label", "y"])
def test_load_data__a_single_input__may_be_called_x(
    tmp_path: Path, key: str, label_key: str
) -> None:
    data = load_data(save_rows(tmp_path / "d.npz", {key: X, label_key: LABELS}), SIGNATURE)
    assert data.calibration.count + data.held_out.count == data.rows == 40
    assert data.calibration.count == 10


def test_load_data__again__gives_the_same_sample_and_digest(tmp_path: Path) -> None:
    path = save_rows(tmp_path / "d.npz", {"x": X, "y": LABELS})
    first, again = load_data(path, SIGNATURE), load_data(str(path), SIGNATURE)
    assert first.sha256 == again.sha256
    np.testing.assert_array_equal(first.held_out.inputs["image"], again.held_out.inputs["image"])
    digests = {first.sha256}
    changed = X.copy()
    changed[0, 0] += 1
    others: list[Tensors] = [
        {"x": changed, "y": LABELS},
        {"x": X},
        {"x": X, "y": LABELS.astype(float)},
    ]
    for arrays in others:
        digests.add(load_data(save_rows(tmp_path / "e.npz", arrays), SIGNATURE).sha256)
    digests.add(load_data(path, SIGNATURE, RowLimits(held_out_rows=9)).sha256)
    assert len(digests) == 5


@pytest.mark.parametrize("size", [1, 7, 40, 1000])
def test_read_rows__any_chunk_size__gives_the_same_digest(size: int) -> None:
    arrays: Tensors = {"x": X, "y": LABELS}
    whole = read_rows(Batches(arrays, 40), SIGNATURE, RowLimits())
    found = read_rows(Batches(arrays, size), SIGNATURE, RowLimits())
    assert found.sha256 == whole.sha256
    for have, want in ((found.calibration, whole.calibration), (found.held_out, whole.held_out)):
        np.testing.assert_array_equal(have.inputs["image"], want.inputs["image"])
        np.testing.assert_array_equal(have.labels, want.labels)


def test_split__labels__stay_with_rows_in_proportion() -> None:
    labels = np.array([0] * 3000 + [1] * 1000)
    arrays = {"x": np.stack([np.arange(4000), labels], 1).astype(np.float32), "y": labels}
    data = read_rows(Batches(arrays, 333), SIGNATURE, RowLimits(200, 400))
    assert (data.calibration.count, data.held_out.count) == (200, 400)
    for rows in (data.calibration, data.held_out):
        assert rows.labels is not None
        assert np.bincount(rows.labels).tolist() == [rows.count * 3 // 4, rows.count // 4]
        np.testing.assert_array_equal(rows.inputs["image"][:, 1], rows.labels)
    numbers = np.concatenate(
        [rows.inputs["image"][:, 0] for rows in (data.calibration, data.held_out)]
    )
    assert len(np.unique(numbers)) == 600


def test_split__any_prefix__has_labels_in_proportion() -> None:
    labels = np.array([0] * 300 + [1] * 100)
    calibration, held_out = choose_rows(400, labels, RowLimits())
    assert len(calibration) == 100
    assert np.bincount(labels[held_out[:100]]).tolist() == [75, 25]


def test_split__another_seed__takes_other_rows() -> None:
    first, second = (choose_rows(len(X), None, RowLimits(seed=seed))[0] for seed in (1, 2))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("limits", [{"calibration_rows": 0}, {"held_out_rows": 0}, {"seed": -1}])
def test_row_limits__zero__is_rejected(limits: dict[str, int]) -> None:
    with pytest.raises(MlctlError, match=f"{next(iter(limits))} = .* is out of range"):
        RowLimits(**limits)


def test_load_data__quantities__are_floats() -> None:
    targets = np.linspace(0, 1, 80, dtype=np.float32).reshape(40, 2)
    data = read_rows(Batches({"x": X, "y": targets}, 9), SIGNATURE, RowLimits())
    assert data.held_out.labels is not None
    assert data.held_out.labels.shape == (30, 2)
    assert data.held_out.labels.dtype == np.float64


def test_load_data__big_endian__is_the_same() -> None:
    swapped = {"x": X.astype(">f4"), "y": LABELS.astype(">i4")}
    data = read_rows(Batches(swapped, 40), SIGNATURE, RowLimits())
    assert data.held_out.inputs["image"].dtype == np.float32
    plain = read_rows(Batches({"x": X, "y": LABELS}, 40), SIGNATURE, RowLimits())
    assert data.sha256 == plain.sha256


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"imagee": X}, "no array for input 'image' in the data; did you mean 'imagee'"),
        ({"x": X, "lables": LABELS}, "'lables' is neither an input nor labels; .* 'labels'"),
        ({"x": X, "image": X}, "'x' is neither an input nor labels; the model takes: image"),
        ({"x": X, "y": LABELS, "label": LABELS}, "given twice: as 'label' and as 'y'"),
        ({"x": X.astype(np.float64)}, "datatype is FP64, expected FP32"),
        ({"x": X[:, :1]}, r"shape is \[-1, 1\], expected \[-1, 2\]"),
        ({"x": X[:, 0]}, r"shape is \[-1\], expected \[-1, 2\]"),
        ({"x": X.astype(np.complex64)}, "has no V2 datatype"),
        ({"x": np.array([["a", "b"]] * 9)}, "has no V2 datatype"),
        ({"x": X, "y": LABELS[:-1]}, "different numbers of rows: x 40, y 39"),
        (
            {"x": X, "y": LABELS[:, None]},
            r"integers of shape \[rows\].* int64 of shape \[rows, 1\]",
        ),
        ({"x": X, "y": LABELS.astype("U1")}, "must be integers .* it is str32"),
        ({"x": X, "y": np.where(LABELS == 3, np.nan, LABELS)}, "'y' has NaN .* in row 30"),
        ({"x": X[:0]}, r"has 0 rows \(minimum 8\)"),
        ({"x": X[:7]}, r"has 7 rows \(minimum 8\)"),
        ({"x": NAN}, "'x' has NaN or infinite values, the first in row 17"),
        ({"x": (X + 1) * np.float32(np.inf)}, "NaN or infinite values, the first in row 0"),
        ({"x": np.float32(3)}, "'x' is a single value"),
    ],
)
def test_load_data__wrong_data__is_named(
    tmp_path: Path, arrays: dict[str, np.ndarray], reason: str
) -> None:
    with pytest.raises(MlctlError, match=reason) as caught:
        load_data(save_rows(tmp_path / "d.npz", arrays), SIGNATURE)
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert caught.value.hint


def test_load_data__a_bad_row__is_counted_over_all_chunks() -> None:
    with pytest.raises(MlctlError, match="first in row 17"):
        read_rows(Batches({"x": NAN}, 5), SIGNATURE, RowLimits())


def test_load_data__several_inputs__go_by_name(tmp_path: Path) -> None:
    ids = np.arange(60).reshape(12, 5)
    data = load_data(save_rows(tmp_path / "t.npz", {"mask": ids % 2, "ids": ids}), TOKENS)
    taken = data.held_out
    np.testing.assert_array_equal(taken.inputs["ids"] % 2, taken.inputs["mask"])
    with pytest.raises(MlctlError, match="no array for input 'ids'"):
        load_data(save_rows(tmp_path / "u.npz", {"x": ids, "mask": ids}), TOKENS)
    with pytest.raises(MlctlError, match="datatype is FP64, expected INT64"):
        load_data(save_rows(tmp_path / "v.npz", {"ids": ids, "mask": ids / 2}), TOKENS)


@pytest.mark.parametrize("form", ["npz", "parquet"])
def test_load_data__an_absent_column__is_nan_only_if_it_is_optional(
    tmp_path: Path, form: str
) -> None:
    columns = [TensorSpec(name=name, dtype=Datatype.FP64, shape=(-1,)) for name in ("age", "pay")]
    table = Signature(inputs=tuple(columns), outputs=tuple(columns[:1]))
    ages = np.arange(40.0)
    source = save_rows(tmp_path / "t.npz", {"age": ages})
    if form == "parquet":
        source = save_parquet(tmp_path / "t.parquet", {"age": ages})
    both = frozenset({"age", "pay"})
    found = load_data(source, table, missing=MissingValues(both, frozenset({"pay"}))).held_out
    assert np.isnan(found.inputs["pay"]).all()
    assert found.inputs["pay"].shape == found.inputs["age"].shape
    assert not np.isnan(found.inputs["age"]).any()
    with pytest.raises(MlctlError, match="input 'pay'"):
        load_data(source, table, missing=MissingValues(both))


def test_require_labels__each_metric__names_what_it_needs() -> None:
    accuracy, rmse = METRICS["accuracy"], METRICS["rmse"]
    classes = Rows({"x": X}, LABELS)
    assert require_labels(classes, accuracy) is LABELS
    assert require_labels(classes, rmse) is LABELS
    assert rmse.labels is LabelKind.QUANTITIES
    for labels, reason in (
        (None, "needs labels, the data has none"),
        (LABELS.astype(float), "needs class numbers as labels, the data has float64"),
        (np.ones(40, np.int64), "all 40 rows have the label 1"),
    ):
        with pytest.raises(MlctlError, match=reason) as caught:
            require_labels(Rows({"x": X}, labels), accuracy)
        assert caught.value.code is ErrorCode.INVALID_INPUT
    with pytest.raises(MlctlError, match="metric rmse needs labels"):
        require_labels(Rows({"x": X}, None), rmse)


def test_load_data__bool_inputs_and_labels__are_read(tmp_path: Path) -> None:
    arrays = {"x": X > 20, "y": X[:, 0] > 20}
    wanted = signature(2, dtype=Datatype.BOOL)
    data = load_data(save_rows(tmp_path / "b.npz", arrays), wanted)
    assert data.held_out.inputs["image"].dtype == np.bool_
    assert data.held_out.labels is not None
    assert set(data.held_out.labels) == {0, 1}
