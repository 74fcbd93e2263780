"""What holds for any plan and any set of bad rows."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from mlctl.bundle.arrays import Arrays
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.sources import open_source
from mlctl.services.model.run_errors import ModelRunError
from mlctl.services.tables.bisect import TooManyError, score_rows


@given(rows=st.integers(1, 300), data=st.data())
def test_bisect__any_bad_rows__finds_exactly_these(rows: int, data: st.DataObject) -> None:
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
def test_bisect__more_bad_rows_than_allowed__ends_early(rows: int, most: int) -> None:
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
def test_plan__any_files_and_unit_sizes__has_each_row_once_in_order(
    files: list[tuple[int, int]], unit_rows: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, first = Path(name), 0
        for index, (rows, group) in enumerate(files):
            table = pa.table({"id": pa.array(range(first, first + rows), pa.int64())})
            parquet.write_table(table, folder / f"{index}.parquet", row_group_size=group)
            first += rows
        source = open_source(name, unit_rows)
        plan = source.plan(["id"], None)
        assert plan == open_source(name, unit_rows).plan(["id"], None)
        assert [unit.id for unit in plan.units] == sorted({unit.id for unit in plan.units})
        assert plan.rows == first
        found = {}
        for unit in data.draw(st.permutations(plan.units)):
            pieces = list(source.read(unit, ["id"], 7))
            found[unit.id] = [row for piece in pieces for row in piece.table["id"].to_pylist()]
            assert len(found[unit.id]) == unit.rows
        assert [row for unit in plan.units for row in found[unit.id]] == list(range(first))
