"""Text inputs, which only a model with a transform has: the same rows in every form."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.data import EvalData, load_data
from tests.support.sources import save_rows

WORDS = [f"wort {number} \u00e4" for number in range(16)]
SIGNATURE = Signature(
    inputs=(TensorSpec(name="text", dtype=Datatype.BYTES, shape=(-1,)),),
    outputs=(TensorSpec(name="y", dtype=Datatype.FP32, shape=(-1,)),),
)


def read(folder: Path, stored: np.ndarray) -> EvalData:
    return load_data(save_rows(folder / "rows.npz", {"text": stored}), SIGNATURE)


def words_of(data: EvalData) -> set[bytes]:
    return {*data.calibration.inputs["text"], *data.held_out.inputs["text"]}


def test_text__any_form__becomes_bytes(tmp_path: Path) -> None:
    encoded = [word.encode() for word in WORDS]
    table = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"text": WORDS}), table)
    raw = tmp_path / "raw.parquet"
    parquet.write_table(pa.table({"text": encoded}), raw)
    found = [
        read(tmp_path, np.array(WORDS)),
        read(tmp_path, np.array(encoded)),
        load_data(table, SIGNATURE),
        load_data(raw, SIGNATURE),
    ]
    assert words_of(found[0]) == set(encoded)
    assert found[0].held_out.inputs["text"].dtype == object
    assert {data.sha256 for data in found} == {found[0].sha256}


def test_text__other_boundaries__have_another_digest(tmp_path: Path) -> None:
    first = read(tmp_path, np.array(["ab", "c", *WORDS]))
    second = read(tmp_path, np.array(["a", "bc", *WORDS]))
    assert first.sha256 != second.sha256


@pytest.mark.parametrize("stored", [np.arange(16), np.array(["a\ud800"] * 16)])
def test_text__no_text__is_rejected(tmp_path: Path, stored: np.ndarray) -> None:
    with pytest.raises(
        MlctlError, match=r"array 'text' holds .*(expected text|not Unicode)"
    ) as told:
        read(tmp_path, stored)
    assert told.value.code is ErrorCode.INVALID_INPUT


def test_text__a_column_of_numbers__is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"text": list(range(16))}), path)
    with pytest.raises(MlctlError, match="holds int64, expected text"):
        load_data(path, SIGNATURE)
