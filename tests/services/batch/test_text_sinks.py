"""Answers as JSON lines and CSV: the content of parts, and a job that goes on in its form."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from mlctl.bundle.verify import verify
from mlctl.services.batch.job import BatchConfig
from mlctl.services.batch.sinks import open_sink, part_format
from mlctl.services.batch.units import Job, ScoredPiece, Unit
from tests.support import tables
from tests.support.bundles import make_bundle

MOMENT = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
TABLE = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "land": ["DE", None],
        "y": pa.array([[0.5, float("nan")], [2.0, 3.0]], pa.list_(pa.float32(), 2)),
        "words": [["a"], []],
        "raw": [b"\xff", b""],
        "at": pa.array([MOMENT, MOMENT], pa.timestamp("us", "UTC")),
    }
)


def write(out: Path, form: str, by: tuple[str, ...] = ()) -> None:
    sink = open_sink(str(out), form)
    sink.begin(Job({"input": "a"}, TABLE.schema, TABLE.schema, partition_by=by))
    sink.commit(Unit("0", "f", 2), [ScoredPiece(TABLE)])
    sink.finish({})


def test_json_lines_sink__answers__are_one_document_per_line(tmp_path: Path) -> None:
    write(tmp_path, "jsonl")
    (part,) = tmp_path.glob("part-0-*.jsonl")
    lines = part.read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {
            "id": 1, "land": "DE", "y": [0.5, "nan"], "words": ["a"], "raw": "/w==",
            "at": "2026-01-02T00:00:00+00:00",
        },
        {
            "id": 2, "land": None, "y": [2.0, 3.0], "words": [], "raw": "",
            "at": "2026-01-02T00:00:00+00:00",
        },
    ]  # fmt: skip


def test_csv_sink__vector__has_a_column_for_each_value(tmp_path: Path) -> None:
    write(tmp_path, "csv")
    (part,) = tmp_path.glob("part-0-*.csv")
    found = arrow_csv.read_csv(part)
    assert found.column_names == ["id", "land", "y_0", "y_1", "words", "raw", "at"]
    assert found["y_0"].to_pylist() == [0.5, 2.0]
    assert found["words"].to_pylist() == ['["a"]', "[]"]
    assert found["at"].to_pylist() == [MOMENT, MOMENT]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_text_sink__partitioned_output__has_a_folder_for_each_key(
    tmp_path: Path, form: str
) -> None:
    write(tmp_path, form, by=("land",))
    parts = tmp_path.rglob(f"part-0-*.{form}")
    folders = sorted(part.parent.relative_to(tmp_path).as_posix() for part in parts)
    assert folders == ["land=DE", "land=__HIVE_DEFAULT_PARTITION__"]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_text_sink__no_answers__keeps_its_format(tmp_path: Path, form: str) -> None:
    bundle = make_bundle(tmp_path / "tiny")
    tables.write_rows(tmp_path / "in.parquet", 10)
    config = BatchConfig(keep=("id",), format=form, filter="id < 0")
    sink = open_sink(str(tmp_path / "o"), form)
    tables.score(bundle, tmp_path / "in.parquet", sink, config=config)
    assert not list((tmp_path / "o").glob("part-*"))
    assert part_format(str(tmp_path / "o")) == form
    assert part_format(str(tmp_path / "new")) == "parquet"


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_text_sink__each_format__holds_the_same_answers(tmp_path: Path, form: str) -> None:
    make_bundle(tmp_path / "tiny")
    bundle = verify(tmp_path / "tiny")
    tables.write_rows(tmp_path / "in.parquet", 300)
    rows = parquet.read_table(tmp_path / "in.parquet").to_pylist()
    if form == "jsonl":
        text = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        head = "id,x_0,x_1,x_2,x_3\n"
        text = head + "".join(f"{r['id']},{','.join(map(str, r['x']))}\n" for r in rows)
    (tmp_path / f"in.{form}").write_text(text)
    config = BatchConfig(keep=("id",), unit_rows=100, format=form)
    tables.score(
        bundle, tmp_path / "in.parquet", open_sink(str(tmp_path / "p")),
    )  # fmt: skip
    sink = open_sink(str(tmp_path / "o"), form)
    tables.score(bundle, tmp_path / f"in.{form}", sink, config=config)
    expected = tables.answers(tmp_path / "p")
    (part,) = (tmp_path / "o").glob("part-*")
    if form == "jsonl":
        found = [json.loads(line) for line in part.read_text().splitlines()]
        keys = expected.column_names
        assert [{key: row[key] for key in keys} for row in found] == expected.to_pylist()
    else:
        answers = arrow_csv.read_csv(part)
        assert answers["id"].to_pylist() == expected["id"].to_pylist()
        name = next(n for n in expected.column_names if n not in ("id", "mlctl_digest"))
        first = tables.matrix(expected[name])[:, 0]
        assert answers[f"{name}_0"].to_numpy() == pytest.approx(first, rel=1e-6)
