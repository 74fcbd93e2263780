from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from mlctl.bundle.sampling import Sampling
from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.observability.calls import RecordedPayload
from mlctl.services.online.observability.segments import SegmentWriter, to_column


def spec(dtype: str, *shape: int, name: str = "x") -> TensorSpec:
    return TensorSpec(name=name, dtype=Datatype(dtype), shape=shape)


SIGNATURE = Signature(
    inputs=(spec("FP32", DYNAMIC, 2), spec("BYTES", DYNAMIC, name="words")),
    outputs=(spec("INT64", DYNAMIC, name="y"),),
)
ALL = Sampling(share=1)


def payload(
    request_id: str, rows: int, sampling: Sampling = ALL, at: float = 5.25
) -> RecordedPayload:
    words = np.array([b"\xff" * (row + 1) for row in range(rows)], dtype=object)
    inputs = {"x": np.arange(2 * rows, dtype="<f4").reshape(rows, 2), "words": words}
    return RecordedPayload(request_id, at, sampling, rows, 0, inputs, {"y": np.arange(rows) * 10})


def read(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.parquet")):
        rows += parquet.read_table(path).to_pylist()
    return rows


def test_segment__requests_of_several_rows__has_each_row(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path / "new", SIGNATURE, "d1")
    assert writer.write([payload("a", 1), payload("b", 2)], ALL, now=9) == 3
    rows = read(tmp_path / "new")
    assert [(row["request_id"], row["row"]) for row in rows] == [("a", 0), ("b", 0), ("b", 1)]
    last = rows[-1]
    assert (last["in.x"], last["in.words"], last["out.y"]) == ([2.0, 3.0], b"\xff\xff", 10)
    assert (last["at"].timestamp(), last["digest"]) == (5.25, "d1")
    kinds = parquet.read_schema(next((tmp_path / "new").iterdir()))
    assert kinds.field("row").type == pa.int32()
    assert kinds.field("at").type == pa.timestamp("us", "UTC")


def test_segment__redacted_tensors__are_left_out(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, SIGNATURE, "d")
    writer.write([payload("a", 1)], Sampling(share=1, redact=("words", "y")), now=1)
    writer.write([payload("b", 1)], Sampling(share=1, inputs=False), now=2)
    first, second = read(tmp_path)
    common = {"request_id", "row", "at", "digest"}
    assert set(first) - common == {"in.x"}
    assert set(second) - common == {"out.y"}


@pytest.mark.parametrize("dtype", [kind.value for kind in Datatype if kind is not Datatype.BYTES])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (DYNAMIC, 2), (0,)])
def test_to_column__each_datatype_and_shape__is_read_back(
    tmp_path: Path, dtype: str, shape: tuple[int, ...]
) -> None:
    one = spec(dtype, DYNAMIC, *shape)
    sizes = [2 if size == DYNAMIC else size for size in shape]
    values = np.arange(4 * int(np.prod(sizes))).reshape(4, *sizes) % 2
    numpy_name = "float32" if dtype == "BF16" else one.dtype.numpy_name
    wanted = values.astype(numpy_name)
    given = wanted
    if dtype == "BF16":
        given = (wanted.view(np.uint32) >> 16).astype(np.uint16)
    column = to_column(one, [given[:1], given[1:]], batched=True)
    parquet.write_table(pa.table({"c": column}), tmp_path / "t.parquet")
    found = parquet.read_table(tmp_path / "t.parquet")["c"].to_pylist()
    np.testing.assert_array_equal(np.array(found, numpy_name).reshape(wanted.shape), wanted)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=6))
def test_to_column__requests_of_different_lengths__keep_theirs(
    forms: list[tuple[int, int]],
) -> None:
    arrays = [np.random.default_rng(0).integers(0, 9, (rows, size)) for rows, size in forms]
    column = to_column(spec("INT64", DYNAMIC, DYNAMIC), arrays, batched=True)
    assert column.to_pylist() == [row for array in arrays for row in array.tolist()]


def test_segment__model_without_a_batch__has_one_row_per_request(tmp_path: Path) -> None:
    whole = Signature(inputs=(spec("FP32", 2, 2),), outputs=(spec("FP32", name="y"),))
    outputs = {"y": np.array(7, np.float32)}
    asked = RecordedPayload("a", 1, ALL, 1, 0, {"x": np.eye(2, dtype=np.float32)}, outputs)
    SegmentWriter(tmp_path, whole, "d").write([asked, asked], ALL, now=1)
    rows = read(tmp_path)
    assert [(row["row"], row["in.x"], row["out.y"]) for row in rows] == [
        (0, [[1, 0], [0, 1]], 7)
    ] * 2


def test_segments__above_the_limit__oldest_and_abandoned_are_removed(tmp_path: Path) -> None:
    left, fresh = tmp_path / ".1-old.tmp", tmp_path / ".2-new.tmp"
    left.write_bytes(b"x")
    os.utime(left, (1, 1))
    fresh.write_bytes(b"x")
    (tmp_path / "mine.txt").write_bytes(b"x" * 10_000)
    # Workers have names of their own.
    writers = [SegmentWriter(tmp_path, SIGNATURE, "d") for _ in range(2)]
    for number in range(6):
        writers[number % 2].write([payload(str(number), 1)], ALL, now=number)
    size = sum(path.stat().st_size for path in tmp_path.glob("*.parquet"))
    assert len(read(tmp_path)) == 6
    bounded = Sampling(share=1, max_bytes=size // 2)
    writers[0].write([payload("6", 1)], bounded, now=6)
    assert [row["request_id"] for row in read(tmp_path)] == ["4", "5", "6"]
    assert not left.exists()
    assert fresh.exists()
    assert (tmp_path / "mine.txt").exists()


def test_segment_writer__unusable_folder_or_no_pyarrow__fails_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MlctlError, match="MLCTL_SAMPLE_DIR"):
        SegmentWriter(tmp_path / "file", SIGNATURE, "d")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MlctlError, match="pyarrow") as caught:
        SegmentWriter(tmp_path, SIGNATURE, "d")
    assert caught.value.code is ErrorCode.RUNTIME_MISSING
