from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from mlctl.rollout.daemon.segments import Segments
from tests.rollout.daemon.shadow.recorded import write_segment


def test_segments__read_twice__yield_each_row_once(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    assert not list(segments.new())
    write_segment(tmp_path, "1", ["a", "b"], {"y": [1.0, 2.0]})
    assert [row.key for row in segments.new()] == [("a", 0), ("b", 0)]
    write_segment(tmp_path, "2", ["c"], {"y": [3.0]})
    (row,) = segments.new()
    assert (row.key, row.digest, float(row.answer["y"])) == (("c", 0), "a" * 64, 3.0)
    assert (segments.cost.requests, segments.cost.rows) == (3, 3)
    assert segments.cost.size > 100
    segments.clear()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("column", "shape"),
    [
        (pa.array([1.0, 2.0]), ()),
        (pa.array(["x", "y"]), ()),
        (pa.array([[1.0, 2.0, 3.0]] * 2), (3,)),
        (pa.array([[1.0, 2.0, 3.0]] * 2, pa.list_(pa.float32(), 3)), (3,)),
        (pa.array([[[1.0, 2.0], [3.0, 4.0]]] * 2), (1, 4)),
        (pa.array([[[1.0, 2.0]]] * 2, pa.list_(pa.list_(pa.float64(), 2), 1)), (1, 2)),
        (pa.array([[[1.0, 2.0]], [[3.0, 4.0]]], pa.list_(pa.list_(pa.float64(), 2))), (1, 2)),
        (pa.array([[1, 2]] * 2, pa.large_list(pa.int64())), (2,)),
        (pa.array([[True, False]] * 2), (2,)),
        (pa.array([np.float16(1), np.float16(2)]), ()),
    ],
)
def test_segments__column_of_each_type__is_an_array(
    tmp_path: Path, column: pa.Array, shape: tuple[int, ...]
) -> None:
    write_segment(tmp_path, "1", ["a", "b"], {"y": column})
    first, second = Segments(tmp_path).new()
    assert first.answer["y"].shape == second.answer["y"].shape == shape
    flat = np.asarray(column.to_pylist()[1]).ravel()
    assert second.answer["y"].ravel().tolist() == flat.tolist()


def test_segments__rows_of_different_lengths__are_read(tmp_path: Path) -> None:
    write_segment(tmp_path, "1", ["a", "b", "c"], {"y": [[1.0], [], [2.0, 3.0]]})
    assert [row.answer["y"].tolist() for row in Segments(tmp_path).new()] == [[1.0], [], [2.0, 3.0]]


def test_segments__invalid_parquet__is_logged_and_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "0.parquet").write_bytes(b"torn")
    write_segment(tmp_path, "1", ["a"], {"y": [1.0]})
    assert len(list(Segments(tmp_path).new())) == 1
    assert "cannot be read" in caplog.text
