"""Types of columns: inputs are read as the signature says, and the others lose nothing."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.formats import delimited, jsonl
from mlctl.services.batch.sources import open_source
from mlctl.services.batch.units import ColumnReading
from mlctl.services.tables.input_columns import column_types, find_feeds

AGE = {"age": pa.float64()}


def scan(
    location: Path | str,
    feeding: Mapping[str, pa.DataType],
    *,
    every: bool = False,
    **options: str,
) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """The rows of all units in one list, and the reasons of the unreadable ones."""
    source = open_source(str(location), options=options)
    names = [*dict.fromkeys((*source.schema.names, *feeding))]
    units = source.plan(names, None, ColumnReading(feeding, every)).units
    pieces = [piece for unit in units for piece in source.read(unit, names, 1000)]
    assert all(piece.table.schema.types == source.schema.types for piece in pieces)
    bad = {each.row: each.reason for piece in pieces for each in piece.unreadable}
    return [row for piece in pieces for row in piece.table.to_pylist()], bad


def lines(path: Path, *rows: Mapping[str, Any] | str) -> Path:
    texts = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


@pytest.fixture
def short_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "_SAMPLE", 2)
    monkeypatch.setattr(delimited, "_BLOCK_BYTES", 32)


@pytest.mark.usefixtures("short_samples")
@pytest.mark.parametrize(
    ("last", "told"),
    [
        ({"age": 41.5, "paid": 7}, None),
        ({"paid": 7}, None),
        ({"age": None, "paid": 7.0}, None),
        ({"age": 41, "paid": 99.95}, "column 'paid' is not int64"),
        ({"age": 1, "paid": 2**64}, "column 'paid' is not int64"),
        ({"age": True, "paid": 7}, None),
        ({"age": 1, "paid": True}, "column 'paid' is not int64"),
        ({"age": 1, "paid": "7"}, "column 'paid' is not int64"),
        ({"age": 41, "new": 1}, "the key 'new' is in none of the first"),
        ({"age": 1, "deep": {"x": 1, "y": 2}}, "column 'deep' is not struct<x: int64>"),
        ({"age": 1, "list": [1.5]}, "column 'list' is not list<item: int64>"),
        ('{"age": 1, "age": 2}', "the line has the key 'age' twice"),
        ('{"age": 1e400}', "the number 1e400 is too large"),
        ('{"age": [1]}', "column 'age' is not double"),
        ('{"age": 1, "\\ud800": 1}', "the key '\\ud800' is in none of the first"),
    ],
)
def test_json__line_after_the_sample__is_read_whole_or_bad(
    tmp_path: Path, last: dict[str, Any] | str, told: str | None
) -> None:
    first = {"age": 41, "paid": 100, "deep": {"x": 1}, "list": [1]}
    rows, bad = scan(lines(tmp_path / "in.jsonl", first, first, last), AGE, every=True)
    assert rows[:2] == [first, first]
    if told is None:
        assert isinstance(last, dict)
        assert rows[2] == {**dict.fromkeys(first), **last}
        assert bad == {}
    else:
        assert (len(rows), list(bad)) == (2, [2])
        assert bad[2].startswith(told)


@pytest.mark.usefixtures("short_samples")
def test_json__column_that_a_model_may_lack__is_found_after_the_sample(tmp_path: Path) -> None:
    path = lines(tmp_path / "in.jsonl", {"fee": 9}, {"fee": 9}, {"age": 70.5, "fee": 9})
    rows, bad = scan(path, AGE)
    assert [row["age"] for row in rows] == [None, None, 70.5]
    assert bad == {}


@pytest.mark.usefixtures("short_samples")
def test_json__key_that_appears_later__is_kept_if_it_has_a_type(tmp_path: Path) -> None:
    path = lines(tmp_path / "in.jsonl", {"age": 1}, {"age": 1}, {"age": 1, "new": 2})
    rows, bad = scan(path, AGE, every=True, types="new:double")
    assert ([row["new"] for row in rows], bad) == ([None, None, 2.0], {})


def test_json__whole_numbers_beyond_int64__keep_their_digits(tmp_path: Path) -> None:
    path = lines(tmp_path / "in.jsonl", {"id": 12345678901234567890}, {"id": 1})
    rows, bad = scan(path, {})
    assert ([row["id"] for row in rows], bad) == ([Decimal(12345678901234567890), Decimal(1)], {})
    path = lines(tmp_path / "in.jsonl", {"id": 0.5}, {"id": 2**53 + 1}, {"id": 1e300})
    rows, bad = scan(path, {})
    assert ([row["id"] for row in rows], bad) == ([0.5, 1e300], {1: "column 'id' is not double"})


def test_json__bytes_that_are_no_utf_8__are_bad_lines(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"zip": "a"}\n{"zip": "\xff"}\n')
    rows, bad = scan(path, {})
    assert (rows, list(bad)) == ([{"zip": "a"}], [1])


@pytest.mark.usefixtures("short_samples")
def test_csv__fraction_after_the_sample__is_a_float_of_its_input(tmp_path: Path) -> None:
    path = lines(tmp_path / "in.csv", "age,paid", *["41,100"] * 20, "41.5,100", "41,99.95")
    rows, bad = scan(path, AGE)
    assert ([row["age"] for row in rows[-2:]], len(rows)) == ([41.0, 41.5], 21)
    assert bad == {21: "column 'paid' is not int64"}


@pytest.mark.parametrize(
    "text",
    [
        "007",
        "+49170",
        "0x1F",
        "12345678901234567890",
        "0.12345678901234567890",
        "2026-01-02 03:04:05.123456789",
    ],
)
def test_csv__text_that_a_number_or_time_would_alter__stays_text(tmp_path: Path, text: str) -> None:
    path = lines(tmp_path / "in.csv", "id,n", f"{text},1.50", ",-0.1234567890123456")
    rows, bad = scan(path, {})
    assert rows == [{"id": text, "n": 1.5}, {"id": None, "n": -0.1234567890123456}]
    assert bad == {}


@pytest.mark.usefixtures("short_samples")
def test_csv__zero_in_front_after_the_sample__is_a_bad_row(tmp_path: Path) -> None:
    path = lines(tmp_path / "in.csv", "zip", *["8000"] * 20, "0800")
    assert scan(path, {})[1] == {20: "column 'zip' is not int64"}
    assert scan(path, {}, types="zip:int64")[1] == {}
    assert scan(path, {"zip": pa.string()})[0][-1] == {"zip": "0800"}


def test_csv__text_in_utf_16__is_rejected_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes("age,zip\n1,a\n".encode("utf-16"))
    with pytest.raises(MlctlError, match=r"in\.csv is text in UTF-16, expected UTF-8") as caught:
        scan(tmp_path / "in.csv", {})
    assert "iconv" in str(caught.value.hint)


def test_sqlite__fraction_after_the_sample__is_never_cut(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "in.db") as db:
        db.execute("CREATE TABLE t (id INTEGER, age, paid)")
        rows = [*((row, 41, 100) for row in range(20_000)), (20_000, 41.5, 5), (20_001, 1, 0.5)]
        db.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    db.close()
    found, bad = scan(f"sqlite://{tmp_path}/in.db?table=t&key=id", AGE)
    assert found[-1] == {"id": 20_000, "age": 41.5, "paid": 5}
    assert bad == {20_001: "column 'paid' is not int64"}


def folder(path: Path, *tables: Mapping[str, Any]) -> Path:
    path.mkdir()
    for index, columns in enumerate(tables):
        parquet.write_table(pa.table(columns), path / f"{index}.parquet")
    return path


def test_folder__files_that_differ_in_their_types__are_one_table(tmp_path: Path) -> None:
    where = folder(
        tmp_path / "in",
        {"age": pa.nulls(1), "zip": pa.array(["a"]), "id": [1]},
        {"age": [41.5], "zip": pa.array(["b"]).dictionary_encode(), "id": [2]},
        {"age": [True], "zip": pa.array(["c"], pa.large_string()), "id": [0.5]},
        {"age": [Decimal("1.50")], "zip": pa.nulls(1), "id": [2**53 + 1]},
    )
    rows, bad = scan(where, {**AGE, "zip": pa.string()})
    assert [row["age"] for row in rows] == [None, 41.5, 1.0]
    assert [row["zip"] for row in rows] == ["a", "b", "c"]
    assert [row["id"] for row in rows] == [1.0, 2.0, 0.5]
    assert bad == {0: "column 'id' is not double"}


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ({"zip": [8000]}, "'zip' is string in 0.parquet, but 1.parquet has int64"),
        ({"age": [1.0]}, "'zip' is string in 0.parquet, but 1.parquet has no such column"),
    ],
)
def test_folder__files_of_different_kinds__are_rejected(
    tmp_path: Path, second: dict[str, Any], told: str
) -> None:
    with pytest.raises(MlctlError, match=told) as caught:
        scan(folder(tmp_path / "in", {"zip": ["a"]}, second), {"zip": pa.string()})
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_arrow__views_run_ends_and_text_that_is_no_utf_8__are_read(tmp_path: Path) -> None:
    broken = pa.array([b"a", b"\xff"]).view(pa.string())
    table = pa.table(
        {
            "v": pa.array(["x", "y"], pa.string_view()),
            "r": pa.RunEndEncodedArray.from_arrays([2], pa.array(["z"])),
            "t": broken,
        }
    )
    with ipc.new_file(tmp_path / "in.arrow", table.schema) as file:
        file.write_table(table)
    rows, bad = scan(tmp_path / "in.arrow", {})
    assert (rows, bad) == ([{"v": "x", "r": "z", "t": "a"}], {1: "column 't' is not string"})


def test_column_types__of_inputs__represent_all_their_values() -> None:
    def spec(name: str, dtype: Datatype, *shape: int) -> TensorSpec:
        return TensorSpec(name=name, dtype=dtype, shape=(-1, *shape))

    signature = Signature(
        inputs=(
            spec("f", Datatype.FP32),
            spec("i", Datatype.INT8),
            spec("u", Datatype.UINT64),
            spec("t", Datatype.BYTES),
            spec("w", Datatype.FP32, 2),
            spec("also", Datatype.FP64),
        ),
        outputs=(spec("y", Datatype.FP32),),
    )
    schema = pa.schema([*((name, pa.int64()) for name in "fiu"), ("t", pa.string())])
    schema = schema.append(pa.field("w", pa.list_(pa.int64())))
    feeds = find_feeds(schema, signature, {"also": ("i",)})
    assert column_types(feeds, schema) == {
        "f": pa.float64(),
        "i": pa.float64(),  # it feeds two inputs
        "u": pa.uint64(),
        "t": pa.string(),
        "w": pa.list_(pa.float64()),
    }


@pytest.mark.parametrize("names", [["age", "age"], ["age", "x", "age"]])
def test_find_feeds__column_that_is_there_twice__is_rejected(names: Sequence[str]) -> None:
    number = TensorSpec(name="age", dtype=Datatype.FP64, shape=(-1,))
    schema = pa.schema([(name, pa.float64()) for name in names])
    with pytest.raises(MlctlError, match="there are 2 columns named 'age'"):
        find_feeds(schema, Signature(inputs=(number,), outputs=(number,)), {})
