"""CSV, JSON lines and Arrow's own format: units, types, packed files, bad rows."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.sources import open_source
from mlctl.services.batch.units import Piece, Source

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


def source_at(path: Path, **options: str) -> Source:
    return open_source(str(path), options=options)


def scan(source: Source, piece_rows: int = 100) -> list[Piece]:
    """Read all units in pieces."""
    columns = source.schema.names
    units = source.plan(columns, None).units
    return [piece for unit in units for piece in source.read(unit, columns, piece_rows)]


def read(pieces: Sequence[Piece]) -> list[dict[str, object]]:
    found: list[dict[str, object]] = pa.concat_tables([p.table for p in pieces]).to_pylist()
    return found


def numbers(pieces: Sequence[Piece]) -> list[int]:
    return [int(number) for piece in pieces for number in piece.numbers]


@pytest.mark.parametrize("packing", ["", ".gz", ".zst"])
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_text_source__rows__come_in_units_with_their_types(
    tmp_path: Path, form: str, packing: str
) -> None:
    content = as_csv(rows()) if form == "csv" else as_jsonl(rows())
    source = source_at(packed(tmp_path / f"in.{form}{packing}", content))
    pieces = scan(source)
    assert source.schema.types == [pa.int64(), pa.float64(), pa.string(), pa.bool_()]
    assert read(pieces) == rows()
    assert numbers(pieces) == list(range(ROWS))
    assert max(piece.table.num_rows for piece in pieces) == 100


def test_text_source__compressed_and_plain_files__are_read_by_name(tmp_path: Path) -> None:
    packed(tmp_path / "b.csv.gz", as_csv(rows()[120:]))
    packed(tmp_path / "a.csv", as_csv(rows()[:120]))
    source = source_at(tmp_path)
    pieces = scan(source)
    units = source.plan(source.schema.names, None).units
    assert [unit.origin for unit in units] == ["a.csv", "b.csv.gz"]
    assert read(pieces) == rows()
    before = source.identity()
    packed(tmp_path / "b.csv.gz", as_csv(rows()[119:]))
    assert source_at(tmp_path).identity() != before


def test_csv_source__rows_that_do_not_fit__are_bad_under_their_own_numbers(tmp_path: Path) -> None:
    lines = as_csv(rows()).decode().split("\n")
    lines[1 + 7] = "7,one,DE,true"
    lines[1 + 120] = "120,1.0,DE"
    lines[1 + 121] = "121,1.0,DE,true,more"
    lines[1 + 249] = "249"
    path = packed(tmp_path / "in.csv", "\n".join(lines).encode())
    pieces = scan(source_at(path, types="score:double"))
    bad = [each for piece in pieces for each in piece.unreadable]
    assert [each.row for each in bad] == [7, 120, 121, 249]
    assert bad[0].reason == "column 'score' is not double"
    values = {"id": "7", "score": "one", "land": "DE", "seen": "true"}
    assert json.loads(bad[0].text) == values
    assert bad[1].reason == "the row has 3 fields, expected 4"
    assert bad[2].text == "121,1.0,DE,true,more"
    assert read(pieces) == [row for row in rows() if row["id"] not in (7, 120, 121, 249)]
    assert numbers(pieces) == [row for row in range(ROWS) if row not in (7, 120, 121, 249)]


@pytest.mark.parametrize("name", ["in.csv", "in.csv.gz"])
@pytest.mark.parametrize(
    "text",
    [
        b'id,land\n0,DE\n1,"DE\n2,AT\n3,AT\n',
        b'id,land,seen\n0,DE,1\n1,"DE,1\n2,AT,1\n',
        b'id,land\n0,DE\n1,"' + b"DE\n" * 70_000,
    ],
    ids=["in the last column", "in another", "200 kB before the end"],
)
def test_csv_source__quote_that_is_never_closed__is_an_error_that_names_its_row(
    tmp_path: Path, name: str, text: bytes
) -> None:
    path = packed(tmp_path / name, text)
    with pytest.raises(
        MlctlError, match="cannot be read: a quote in row 1 is never closed"
    ) as error:
        scan(source_at(path))
    assert error.value.code is ErrorCode.INVALID_INPUT


def test_csv_source__quotes_inside_fields__are_read_as_they_are(tmp_path: Path) -> None:
    path = packed(tmp_path / "in.csv", b'id,land\n0,5" pipe\n1,"a\nb"\n2,"say ""hi"""\n')
    (piece,) = scan(source_at(path))
    assert piece.table["land"].to_pylist() == ['5" pipe', "a\nb", 'say "hi"']


def test_csv_source__row_that_is_no_text__leaves_the_others_unchanged(tmp_path: Path) -> None:
    path = packed(tmp_path / "in.csv", b"id,land\n0, DE \n1,\xff\n2,AT\t\n")
    (piece,) = scan(source_at(path))
    assert [bad.row for bad in piece.unreadable] == [1]
    assert piece.table["land"].to_pylist() == [" DE ", "AT\t"]


def test_json_source__lines_that_do_not_fit__are_bad_under_their_own_numbers(
    tmp_path: Path,
) -> None:
    lines = as_jsonl(rows()).split(b"\n")[:-1]
    lines[7] = b'{"id": 7, "score": "one", "land": "DE"}'
    lines[120] = b'{"id": 120, "sco'
    lines[121] = b"[1, 2]"
    lines[130] = b"  "
    lines[249] = b'{"id": 249, "score": 1.0, "land": "\\ud800", "seen": true}'
    pieces = scan(source_at(packed(tmp_path / "in.jsonl", b"\n".join(lines))))
    bad = {each.row: each for piece in pieces for each in piece.unreadable}
    assert sorted(bad) == [7, 120, 121, 249]
    assert bad[7].reason == "column 'score' is not double"
    assert json.loads(bad[7].text) == {"id": 7, "score": "one", "land": "DE"}
    assert bad[120].text == '{"id": 120, "sco'
    assert bad[121].reason == "the line is not a JSON object"
    assert "\\ud800" in bad[249].text
    gone = (7, 120, 121, 130, 249)
    assert read(pieces) == [row for row in rows() if row["id"] not in gone]
    assert numbers(pieces) == [row for row in range(ROWS) if row not in gone]


def test_json_source__lists_nulls_and_times__keep_their_meaning(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"x": [1.5, 2], "at": "2026-01-02", "no": null}\n{"x": [3, 4.0]}\n')
    source = source_at(path)
    assert source.schema.types == [pa.list_(pa.float64()), pa.string(), pa.string()]
    assert read(scan(source)) == [
        {"x": [1.5, 2.0], "at": "2026-01-02", "no": None},
        {"x": [3.0, 4.0], "at": None, "no": None},
    ]


def test_text_source__types_and_delimiter__are_options(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("zip;age\n01234;7\n99999;8\n")
    source = source_at(path, delimiter=";", types="zip:string,age:double")
    assert read(scan(source)) == [{"zip": "01234", "age": 7.0}, {"zip": "99999", "age": 8.0}]
    for types, told in (("no:string", "no column 'no'"), ("zip:text", "is not NAME:TYPE")):
        with pytest.raises(MlctlError, match=told):
            source_at(path, delimiter=";", types=types).schema  # noqa: B018


@pytest.mark.parametrize("form", ["arrow", "arrows", "arrows.gz"])
def test_arrow_source__file_or_stream__is_read(tmp_path: Path, form: str) -> None:
    table = pa.Table.from_pylist(rows())
    sink = pa.BufferOutputStream()
    make = pa.ipc.new_file if form == "arrow" else pa.ipc.new_stream
    with make(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=70)
    path = packed(tmp_path / f"in.{form}", sink.getvalue().to_pybytes())
    pieces = scan(source_at(path))
    assert numbers(pieces) == list(range(ROWS))
    assert read(pieces) == rows()


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("in.csv", b"", "in.csv cannot be read: Empty CSV file"),
        ("in.jsonl", b"\n", "in.jsonl has no JSON objects"),
        ("in.jsonl.gz", b"no gzip", "in.jsonl.gz cannot be read"),
        ("in.arrow", b"no arrow", "in.arrow cannot be read"),
    ],
)
def test_text_source__malformed_line__is_a_bad_row(
    tmp_path: Path, name: str, content: bytes, told: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(MlctlError, match=told) as caught:
        source_at(tmp_path / name).schema  # noqa: B018
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_text_source__truncated_file__is_reported(tmp_path: Path) -> None:
    whole = gzip.compress(as_jsonl(rows()))
    (tmp_path / "in.jsonl.gz").write_bytes(whole[:-200])
    with pytest.raises(MlctlError, match=r"in\.jsonl\.gz cannot be read"):
        scan(source_at(tmp_path / "in.jsonl.gz"))
