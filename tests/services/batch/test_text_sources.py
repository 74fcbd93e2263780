"""CSV, JSON lines and Arrow's own format: units, types, packed files, bad rows."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from bundle.errors import ErrorCode, MlctlError
from services.batch.base import Chunk, Source, SourceRequest
from services.batch.sources import open_source

ROWS = 250
LAND = ["DE", "AT", "NA", "x,y", 'say "hi"']


def packed(path: Path, content: bytes) -> Path:
    """The content in a file that is packed as its name says."""
    if path.suffix == ".gz":
        content = gzip.compress(content[: len(content) // 2]) + gzip.compress(
            content[len(content) // 2 :]
        )
    elif path.suffix == ".zst":
        content = pa.compress(content, codec="zstd", asbytes=True)
    path.write_bytes(content)
    return path


def rows() -> list[dict[str, object]]:
    return [
        {"id": row, "score": row / 4, "land": LAND[row % 5], "seen": row % 2 == 0}
        for row in range(ROWS)
    ]


def as_csv(found: Sequence[dict[str, object]]) -> bytes:
    lines = ["id,score,land,seen"]
    for row in found:
        land = str(row["land"]).replace('"', '""')
        lines.append(f'{row["id"]},{row["score"]},"{land}",{str(row["seen"]).lower()}')
    return "\n".join(lines).encode()


def as_jsonl(found: Sequence[dict[str, object]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in found)


def source_at(path: Path, unit_rows: int = 100, **options: str) -> Source:
    return open_source(SourceRequest(str(path), unit_rows, options))


def scan(source: Source, done: Sequence[str] = ()) -> list[Chunk]:
    return list(source.scan(source.schema.names, done))


def read(chunks: Sequence[Chunk]) -> list[dict[str, object]]:
    found: list[dict[str, object]] = pa.concat_tables([c.table for c in chunks]).to_pylist()
    return found


@pytest.mark.parametrize("packing", ["", ".gz", ".zst"])
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_rows_come_in_units_with_their_types(tmp_path: Path, form: str, packing: str) -> None:
    content = as_csv(rows()) if form == "csv" else as_jsonl(rows())
    source = source_at(packed(tmp_path / f"in.{form}{packing}", content))
    chunks = scan(source)
    assert source.schema.types == [pa.int64(), pa.float64(), pa.string(), pa.bool_()]
    assert [(c.unit.start, c.unit.rows) for c in chunks] == [(0, 100), (100, 100), (200, 50)]
    assert read(chunks) == rows()
    assert [c.number(3) for c in chunks] == [3, 103, 203]
    again = scan(source, [chunks[0].unit.id, chunks[2].unit.id])
    assert [c.unit for c in again] == [chunks[1].unit]


def test_a_folder_of_packed_and_plain_files_in_order_of_their_names(tmp_path: Path) -> None:
    packed(tmp_path / "b.csv.gz", as_csv(rows()[120:]))
    packed(tmp_path / "a.csv", as_csv(rows()[:120]))
    source = source_at(tmp_path)
    chunks = scan(source)
    assert [c.unit.origin for c in chunks] == ["a.csv", "a.csv", "b.csv.gz", "b.csv.gz"]
    assert read(chunks) == rows()
    before = source.identity()
    packed(tmp_path / "b.csv.gz", as_csv(rows()[119:]))
    assert source_at(tmp_path).identity() != before


def test_csv_rows_that_do_not_fit_are_bad_under_their_own_numbers(tmp_path: Path) -> None:
    lines = as_csv(rows()).decode().split("\n")
    lines[1 + 7] = "7,one,DE,true"
    lines[1 + 120] = "120,1.0,DE"
    lines[1 + 121] = "121,1.0,DE,true,more"
    lines[1 + 249] = "249"
    path = packed(tmp_path / "in.csv", "\n".join(lines).encode())
    chunks = scan(source_at(path, types="score:double"))
    bad = [each for chunk in chunks for each in chunk.rejected]
    assert [each.row for each in bad] == [7, 120, 121, 249]
    assert bad[0].reason == "column 'score' is not double"
    assert bad[0].values == {"id": "7", "score": "one", "land": "DE", "seen": "true"}
    assert bad[1].reason == "the row has 3 fields, expected 4"
    assert bad[2].values == {"line": "121,1.0,DE,true,more"}
    assert read(chunks) == [row for row in rows() if row["id"] not in (7, 120, 121, 249)]
    for chunk in chunks:
        ids = chunk.table["id"].to_pylist()
        assert [chunk.number(index) for index in range(len(ids))] == ids
        assert chunk.unit.rows == len(ids) + len(chunk.rejected)


def test_text_beside_a_row_that_is_no_text_is_as_it_is(tmp_path: Path) -> None:
    path = packed(tmp_path / "in.csv", b"id,land\n0, DE \n1,\xff\n2,AT\t\n")
    (chunk,) = scan(source_at(path))
    assert [bad.row for bad in chunk.rejected] == [1]
    assert chunk.table["land"].to_pylist() == [" DE ", "AT\t"]


def test_json_lines_that_do_not_fit_are_bad_under_their_own_numbers(tmp_path: Path) -> None:
    lines = as_jsonl(rows()).split(b"\n")[:-1]
    lines[7] = b'{"id": 7, "score": "one", "land": "DE"}'
    lines[120] = b'{"id": 120, "sco'
    lines[121] = b"[1, 2]"
    lines[130] = b"  "
    lines[249] = b'{"id": 249, "score": 1.0, "land": "\\ud800", "seen": true}'
    chunks = scan(source_at(packed(tmp_path / "in.jsonl", b"\n".join(lines))))
    bad = {each.row: each for chunk in chunks for each in chunk.rejected}
    assert sorted(bad) == [7, 120, 121, 249]
    assert bad[7].reason == "column 'score' is not double"
    assert bad[7].values == {"id": 7, "score": "one", "land": "DE"}
    assert bad[120].values == {"line": '{"id": 120, "sco'}
    assert bad[121].reason == "the line is no object of JSON"
    assert "\\ud800" in str(bad[249].values["line"])
    gone = (7, 120, 121, 130, 249)
    assert read(chunks) == [row for row in rows() if row["id"] not in gone]
    assert [c.number(i) for c in chunks for i in range(c.table.num_rows)] == [
        row for row in range(ROWS) if row not in gone
    ]


def test_json_lists_nulls_and_times_keep_their_meaning(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"x": [1.5, 2], "at": "2026-01-02", "no": null}\n{"x": [3, 4.0]}\n')
    source = source_at(path)
    assert source.schema.types == [pa.list_(pa.float64()), pa.string(), pa.string()]
    assert read(scan(source)) == [
        {"x": [1.5, 2.0], "at": "2026-01-02", "no": None},
        {"x": [3.0, 4.0], "at": None, "no": None},
    ]


def test_types_and_delimiters_can_be_told(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("zip;age\n01234;7\n99999;8\n")
    source = source_at(path, delimiter=";", types="zip:string,age:double")
    assert read(scan(source)) == [{"zip": "01234", "age": 7.0}, {"zip": "99999", "age": 8.0}]
    for types, told in (("no:string", "no column 'no'"), ("zip:text", "is not NAME:TYPE")):
        with pytest.raises(MlctlError, match=told):
            source_at(path, delimiter=";", types=types).schema  # noqa: B018


@pytest.mark.parametrize("form", ["arrow", "arrows", "arrows.gz"])
def test_arrow_files_and_streams(tmp_path: Path, form: str) -> None:
    table = pa.Table.from_pylist(rows())
    sink = pa.BufferOutputStream()
    make = pa.ipc.new_file if form == "arrow" else pa.ipc.new_stream
    with make(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=70)
    path = packed(tmp_path / f"in.{form}", sink.getvalue().to_pybytes())
    chunks = scan(source_at(path))
    assert [c.unit.rows for c in chunks] == [100, 100, 50]
    assert read(chunks) == rows()


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("in.csv", b"", "in.csv cannot be read: Empty CSV file"),
        ("in.jsonl", b"\n", "in.jsonl has no objects of JSON"),
        ("in.jsonl.gz", b"no gzip", "in.jsonl.gz cannot be read"),
        ("in.arrow", b"no arrow", "in.arrow cannot be read"),
    ],
)
def test_what_is_not_of_the_form_is_told(
    tmp_path: Path, name: str, content: bytes, told: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(MlctlError, match=told) as caught:
        source_at(tmp_path / name).schema  # noqa: B018
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_a_file_that_ends_too_early_is_told(tmp_path: Path) -> None:
    whole = gzip.compress(as_jsonl(rows()))
    (tmp_path / "in.jsonl.gz").write_bytes(whole[:-200])
    with pytest.raises(MlctlError, match=r"in\.jsonl\.gz cannot be read"):
        scan(source_at(tmp_path / "in.jsonl.gz"))
