"""What holds for any plan and any set of bad rows."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from bundle.errors import ErrorCode, MlctlError
from services.batch.base import SourceRequest
from services.batch.sources.parquet import ParquetSource
from services.runtime.bisect import Arrays, TooManyError, score_rows
from services.runtime.run_errors import ModelRunError
from services.runtime.tabular.values import row_as_json, rows_from_json


@given(rows=st.integers(1, 300), data=st.data())
def test_bisecting_finds_exactly_the_rows_at_fault(rows: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, rows - 1)))
    calls = 0

    def run(inputs: Arrays) -> dict[str, np.ndarray]:
        nonlocal calls
        calls += 1
        if bad & set(inputs["x"].tolist()):
            raise ModelRunError("poison")
        return {"y": inputs["x"] * 2}

    scored = score_rows(run, {"x": np.arange(rows)})
    good = sorted(set(range(rows)) - bad)
    assert scored.rows.tolist() == good
    assert (scored.outputs is None) == (not good)
    if scored.outputs is not None:
        assert scored.outputs["y"].tolist() == [2 * row for row in good]
    assert scored.reasons == dict.fromkeys(sorted(bad), "poison")
    assert calls <= 1 + 2 * len(bad) * int(np.ceil(np.log2(rows)) if rows > 1 else 0)


@given(rows=st.integers(1, 100), most=st.integers(0, 20))
def test_bisecting_ends_once_too_many_failed(rows: int, most: int) -> None:
    def run(_inputs: Arrays) -> dict[str, np.ndarray]:
        raise MlctlError(ErrorCode.INVALID_INPUT, "poison")

    try:
        scored = score_rows(run, {"x": np.zeros(rows)}, most)
    except TooManyError as error:
        assert len(error.reasons) == most + 1 <= rows
    else:
        assert len(scored.reasons) == rows <= most


@settings(max_examples=25)
@given(
    files=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 15)), min_size=1, max_size=3),
    unit_rows=st.integers(1, 30),
    data=st.data(),
)
def test_units_are_each_row_once_in_order_in_any_state(
    files: list[tuple[int, int]], unit_rows: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, first = Path(name), 0
        for index, (rows, group) in enumerate(files):
            table = pa.table({"id": pa.array(range(first, first + rows), pa.int64())})
            parquet.write_table(table, folder / f"{index}.parquet", row_group_size=group)
            first += rows
        source = ParquetSource(SourceRequest(name, unit_rows))
        units = list(source.units())
        assert units == list(ParquetSource(SourceRequest(name, unit_rows)).units())
        assert [unit.id for unit in units] == sorted({unit.id for unit in units})
        assert source.total_rows() == first == sum(unit.rows for unit in units)
        done = data.draw(st.sets(st.sampled_from([unit.id for unit in units]))) if units else set()
        found = {
            chunk.unit.id: chunk.table["id"].to_pylist() for chunk in source.scan(["id"], done)
        }
        assert list(found) == [unit.id for unit in units if unit.id not in done]
        for unit in data.draw(st.permutations(units)):
            rows_read = source.read(unit, ["id"]).table["id"].to_pylist()
            assert found.get(unit.id, rows_read) == rows_read
            found[unit.id] = rows_read
        assert [row for unit in units for row in found[unit.id]] == list(range(first))


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "f": st.none() | st.floats(width=32),
                "s": st.none() | st.text(st.characters(codec="utf-8")),
                "b": st.none() | st.binary(),
                "i": st.none() | st.integers(-(2**63), 2**63 - 1),
                "t": st.none() | st.datetimes(),
                "d": st.none() | st.decimals("-99999", "99999", places=3),
                "l": st.none() | st.lists(st.none() | st.floats()),
            }
        ),
        max_size=5,
    )
)
def test_rows_come_back_from_json_as_they_were(rows: list[dict[str, object]]) -> None:
    schema = pa.schema(
        {
            "f": pa.float32(),
            "s": pa.string(),
            "b": pa.binary(),
            "i": pa.int64(),
            "t": pa.timestamp("us"),
            "d": pa.decimal128(12, 3),
            "l": pa.list_(pa.float64()),
        }.items()
    )
    table = pa.Table.from_pylist(rows, schema)
    told = [row_as_json(table, index) for index in range(table.num_rows)]
    again = rows_from_json(told, schema)
    assert again.schema == schema
    assert repr(again.to_pylist()) == repr(table.to_pylist())
