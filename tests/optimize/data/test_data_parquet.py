"""Reading Parquet files: columns as inputs, missing values, and the memory that it takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.data import RowLimits, load_data, read_rows
from mlctl.optimize.data.parquet import ParquetRows
from tests.support.eval_rows import TOKENS, Batches, flat_lists, save_parquet, signature

X = np.arange(480, dtype=np.float32).reshape(40, 4, 3)
LABELS = np.repeat(np.arange(4), 10)
SIGNATURE = signature(4, 3)


@pytest.mark.parametrize("chunk_bytes", [1, 500, 1 << 20])
@pytest.mark.parametrize("form", ["flat", "nested", "tensor"])
def test_parquet__lists_of_any_form__are_rows(tmp_path: Path, form: str, chunk_bytes: int) -> None:
    column: Any = {
        "flat": flat_lists(X),
        "nested": pa.array(X.tolist(), pa.list_(pa.list_(pa.float32(), 3))),
        "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(X),
    }[form]
    path = save_parquet(
        tmp_path / "d.parquet", {"image": column, "label": LABELS}, row_group_size=13
    )
    found = read_rows(ParquetRows(path, SIGNATURE, chunk_bytes), SIGNATURE, RowLimits())
    want = read_rows(Batches({"image": X, "labels": LABELS}, 40), SIGNATURE, RowLimits())
    assert found.sha256 == want.sha256
    np.testing.assert_array_equal(found.held_out.inputs["image"], want.held_out.inputs["image"])


@pytest.mark.parametrize("shape", [(), (1,)])
def test_parquet__single_numbers__have_the_shape_of_the_model(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    path = save_parquet(tmp_path / "d.parquet", {"x": X[:, 0, 0], "y": X[:, 0, 1:].tolist()})
    data = load_data(path, signature(*shape))
    assert data.held_out.inputs["image"].shape == (30, *shape)
    assert data.held_out.labels is not None
    assert data.held_out.labels.shape == (30, 2)


def test_parquet__a_pandas_frame__is_read_without_its_index(tmp_path: Path) -> None:
    import pandas as pd

    ids = np.arange(60).reshape(12, 5)
    frame = pd.DataFrame({"ids": list(ids), "mask": list(ids % 2)}, index=range(100, 112))
    frame[::1].loc[[*range(100, 112)]].to_parquet(tmp_path / "d.parquet")
    data = load_data(tmp_path / "d.parquet", TOKENS)
    taken = data.held_out.inputs
    assert taken["ids"].shape == (9, 5)
    np.testing.assert_array_equal(taken["ids"] % 2, taken["mask"])


def test_parquet__bools_and_halves__keep_their_types(tmp_path: Path) -> None:
    for dtype, values in ((Datatype.BOOL, X > 99), (Datatype.FP16, X.astype(np.float16))):
        path = save_parquet(tmp_path / "d.parquet", {"x": flat_lists(values)})
        data = load_data(path, signature(4, 3, dtype=dtype))
        assert data.held_out.inputs["image"].dtype == values.dtype


RAGGED = pa.array([[1.0] * (2 + (row == 30)) for row in range(40)], pa.list_(pa.float32()))
HOLED = pa.array([None if row == 5 else 1.0 for row in range(40)], pa.float32())


@pytest.mark.parametrize(
    ("columns", "wanted", "reason"),
    [
        ({"x": RAGGED}, signature(-1), "the rows of 'image' have 2 to 3 values"),
        ({"x": RAGGED[29:39]}, signature(-1), "the rows of 'image' have 2 to 3 values"),
        ({"x": HOLED}, signature(), "row 5: column 'x' is null"),
        (
            {"x": pa.array([[1.0, None]] * 40, pa.list_(pa.float32()))},
            signature(2),
            "row 0: .*null",
        ),
        ({"x": pa.array([[1.0], None] * 9, pa.list_(pa.float32()))}, signature(1), "row 1: .*null"),
        ({"x": ["a"] * 40}, signature(), "row 0: column 'x': 'a' is not a value of float32"),
        ({"x": X[:, 0, 0], "y": ["cat"] * 40}, signature(), "'y' holds string, expected numbers"),
        ({"x": X[:, 0, 0], "y": HOLED}, signature(), "'y' has 1 missing values"),
        ({"x": X[:, 0, 0].astype(float) * 1e39}, signature(), "row 1: .* not a value of float32"),
        ({"x": flat_lists(X)}, signature(5), "'x' has 12 values in a row, expected 5 values"),
        ({"x": LABELS, "y": LABELS, "label": LABELS}, signature(), "labels are given twice"),
        ({"id": LABELS, "x": X[:, 0, 0]}, signature(), "'id' is neither an input nor labels"),
        ({"x": pa.array([], pa.float32())}, signature(), "has 0 rows"),
    ],
)
def test_parquet__wrong_columns__are_named(
    tmp_path: Path, columns: dict[str, Any], wanted: Signature, reason: str
) -> None:
    path = save_parquet(tmp_path / "d.parquet", columns)
    with pytest.raises(MlctlError, match=reason) as caught:
        load_data(path, wanted)
    assert caught.value.code is ErrorCode.INVALID_INPUT


TOKENS_AND_MASK = Signature(
    inputs=(
        TensorSpec(name="ids", dtype=Datatype.INT64, shape=(-1, -1)),
        TensorSpec(name="mask", dtype=Datatype.INT64, shape=(-1, -1)),
    ),
    outputs=(TensorSpec(name="y", dtype=Datatype.FP32, shape=(-1,)),),
)


@pytest.mark.parametrize("columns", [{}, {"ids": ("tokens",), "mask": ("mask",)}])
def test_parquet__rows_of_unequal_length__are_padded_as_the_server_does(
    tmp_path: Path, columns: dict[str, tuple[str, ...]]
) -> None:
    ids = [[row + 1] * (1 + row % 3) for row in range(40)]
    kind = pa.list_(pa.int64())
    name = "tokens" if columns else "ids"
    table = {name: pa.array(ids, kind), "mask": pa.array([[1] * len(row) for row in ids], kind)}
    path = save_parquet(tmp_path / "d.parquet", table)
    pad = {"ids": -1, "mask": 0}
    found = load_data(path, TOKENS_AND_MASK, columns=columns, pad=pad)
    for inputs in (found.calibration.inputs, found.held_out.inputs):
        assert inputs["ids"].shape[1] == inputs["mask"].shape[1] == 3
        np.testing.assert_array_equal(inputs["ids"] == -1, inputs["mask"] == 0)
        np.testing.assert_array_equal((inputs["ids"][:, 0] - 1) % 3 + 1, inputs["mask"].sum(axis=1))
    # The digest depends on the rows, not on the chunks that they are read in.
    if not columns:
        small = ParquetRows(path, TOKENS_AND_MASK, 1)
        again = read_rows(small, TOKENS_AND_MASK, RowLimits(), pad=pad)
        assert again.sha256 == found.sha256
    with pytest.raises(MlctlError, match="have 1 to 3 values") as caught:
        load_data(path, TOKENS_AND_MASK, columns=columns)
    assert "--batching" in (caught.value.hint or "")


def test_parquet__labels_as_text__hint_says_how_to_number_them(tmp_path: Path) -> None:
    path = save_parquet(tmp_path / "d.parquet", {"x": X[:, 0, 0], "labels": ["cat"] * 40})
    with pytest.raises(MlctlError) as caught:
        load_data(path, signature())
    assert "pandas.Categorical(labels).codes" in caught.value.hint


def test_parquet__a_list_length_that_changes__is_rejected(tmp_path: Path) -> None:
    path = save_parquet(tmp_path / "d.parquet", {"x": RAGGED})
    wanted = signature(-1)
    with pytest.raises(MlctlError, match=r"input image changes .*\[rows, 2\] .*\[rows, 3\]"):
        read_rows(ParquetRows(path, wanted, 1), wanted, RowLimits())


@pytest.mark.parametrize("cut", [4, 400])
def test_parquet__cut_short__is_named(tmp_path: Path, cut: int) -> None:
    whole = save_parquet(tmp_path / "d.parquet", {"x": flat_lists(X)}).read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[:-cut])
    with pytest.raises(MlctlError, match=r"cut\.parquet cannot be read"):
        load_data(tmp_path / "cut.parquet", SIGNATURE)


def test_parquet__without_pyarrow__names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_parquet(tmp_path / "d.parquet", {"x": flat_lists(X)})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MlctlError, match="need the package pyarrow") as caught:
        load_data(path, SIGNATURE)
    assert caught.value.code is ErrorCode.RUNTIME_MISSING


_PEAK = """
import sys, pyarrow as pa
from pathlib import Path
from mlctl.optimize.data import RowLimits, read_rows
from mlctl.optimize.data.parquet import ParquetRows
from tests.support.eval_rows import signature
pool = pa.proxy_memory_pool(pa.default_memory_pool())
pa.set_memory_pool(pool)
wanted = signature(256)
source = ParquetRows(Path(sys.argv[1]), wanted, 1 << 20)
data = read_rows(source, wanted, RowLimits(100, 500))
labels = data.held_out.labels
assert (data.held_out.inputs["image"][:, 0] % 10 == labels).all()
print(pool.max_memory())
"""


@pytest.mark.slow
def test_parquet__a_large_row_group__is_read_in_bounded_memory(tmp_path: Path) -> None:
    numbers = np.arange(60_000, dtype=np.float32)
    rows = np.random.default_rng(0).random((60_000, 256), np.float32)
    rows[:, 0] = numbers
    columns = {"x": flat_lists(rows), "y": (numbers % 10).astype(np.int64)}
    path = save_parquet(
        tmp_path / "d.parquet", columns, row_group_size=60_000, use_dictionary=False
    )
    assert path.stat().st_size > 50 * 1024 * 1024
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, str(path)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 12 * 1024 * 1024


FRAME = {
    "customer": np.arange(40),
    "height": X[:, 0, 0].astype(np.float64),
    "width": np.arange(40),
    "target": LABELS,
}
WIDE = Signature(
    inputs=(
        TensorSpec(name="size", dtype=Datatype.FP32, shape=(-1, 2)),
        TensorSpec(name="height", dtype=Datatype.FP32, shape=(-1,)),
    ),
    outputs=(TensorSpec(name="y", dtype=Datatype.FP32, shape=(-1,)),),
)


@pytest.mark.parametrize("mapped", [("height", "width"), ("*h*t", "width")])
def test_parquet__mapped_columns__are_converted_and_others_left_out(
    tmp_path: Path, mapped: tuple[str, ...]
) -> None:
    path = save_parquet(tmp_path / "d.parquet", FRAME, row_group_size=13)
    columns = {"size": mapped, "labels": ("target",)}
    data = load_data(path, WIDE, columns=columns)
    taken = data.held_out
    assert taken.inputs["size"].dtype == taken.inputs["height"].dtype == np.float32
    np.testing.assert_array_equal(taken.inputs["size"][:, 0], taken.inputs["height"])
    assert taken.labels is not None
    np.testing.assert_array_equal(taken.labels, LABELS[taken.inputs["size"][:, 1].astype(int)])
    folder = load_data(tmp_path, WIDE, columns=columns)
    assert folder.sha256 == data.sha256


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"size": ("height", "depth")}, "no column is named 'depth'"),
        ({"size": ("height",)}, "has one value of double in a row, expected 2 values"),
        ({"sizes": ("height", "width")}, "the model has no input 'sizes'"),
        ({"size": ("height", "width"), "labels": ("goal",)}, "there is no column 'goal'"),
        ({"size": ("height", "text")}, "row 0: column 'text': 'big' is not a value of float32"),
    ],
)
def test_parquet__a_wrong_map__is_rejected(
    tmp_path: Path, columns: dict[str, tuple[str, ...]], message: str
) -> None:
    path = save_parquet(tmp_path / "d.parquet", {**FRAME, "text": ["big"] * 40})
    with pytest.raises(MlctlError) as caught:
        load_data(path, WIDE, columns=columns)
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert message in caught.value.message


def test_npz__a_map__is_rejected(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", image=X)
    with pytest.raises(MlctlError, match="--map is for the columns of Parquet files"):
        load_data(tmp_path / "d.npz", SIGNATURE, columns={"image": ("a",)})
