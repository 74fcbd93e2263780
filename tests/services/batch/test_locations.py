"""Paths, folders, globs and URLs."""

from __future__ import annotations

from pathlib import Path

import fsspec
import numpy as np
import pytest
from pyarrow import parquet

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.locations import list_files, scheme_of, suffix_of, without_password
from mlctl.services.batch.sinks import open_sink
from mlctl.services.batch.sources import open_source
from tests.support import tables


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.parquet", "a.parquet", "k=1/c.parquet", "_SUCCESS", ".x/d.parquet", "n.txt"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path / "in"


def names(location: str, *endings: str) -> list[str]:
    return [file.name for file in list_files(location) if file.name.endswith(endings or ("",))]


def test_location__folder__lists_its_visible_files_in_order(folder: Path) -> None:
    expected = ["a.parquet", "b.parquet", "k=1/c.parquet"]
    assert names(str(folder), ".parquet") == expected
    assert names(f"file://{folder}", ".parquet") == expected
    assert names(str(folder)) == [*expected, "n.txt"]


def test_location__glob_or_file__lists_what_matches(folder: Path) -> None:
    assert names(f"{folder}/?.parquet") == ["a.parquet", "b.parquet"]
    assert names(f"{folder}/*/c.*") == ["k=1/c.parquet"]
    assert names(f"{folder}/_SUCCESS") == ["_SUCCESS"]


def test_location__links_and_spaces__are_followed(folder: Path, tmp_path: Path) -> None:
    (folder / "k=1").rename(tmp_path / "k = [1]")
    (folder / "day=2").symlink_to(tmp_path / "k = [1]")
    assert names(str(folder), ".parquet") == ["a.parquet", "b.parquet", "day=2/c.parquet"]
    assert names(str(tmp_path / "k = [1]")) == ["c.parquet"]


def test_location__url__is_listed_by_fsspec(folder: Path) -> None:
    system = fsspec.filesystem("memory")
    system.put(str(folder), "/place", recursive=True)
    try:
        expected = ["a.parquet", "b.parquet", "k=1/c.parquet"]
        assert names("memory://place", ".parquet") == expected
        assert names("memory://place/*.parquet") == expected[:2]
        (one,) = list_files("memory://place/a.parquet")
        with one.open() as file:
            assert (one.name, one.size, file.read()) == ("a.parquet", 9, b"a.parquet")
        assert one.version
    finally:
        system.rm("/place", recursive=True)


def test_location__url__rows_are_read_from_it(tmp_path: Path) -> None:
    x = tables.write_rows(tmp_path / "in.parquet", 700)
    system = fsspec.filesystem("memory")
    system.put(str(tmp_path / "in.parquet"), "/rows/in.parquet")
    try:
        source = open_source("memory://rows", 300)
        units = source.plan(["x"], None).units
        pieces = [piece for unit in units for piece in source.read(unit, ["x"], 300)]
        assert [piece.table.num_rows for piece in pieces] == [300, 300, 100]
        found = np.concatenate([tables.matrix(piece.table["x"]) for piece in pieces])
        np.testing.assert_array_equal(found, x)
    finally:
        system.rm("/rows", recursive=True)


@pytest.mark.parametrize("location", ["/no/such/place", "memory://no/such", "no*where"])
def test_locations__no_rows__is_rejected(location: str) -> None:
    with pytest.raises(MlctlError) as caught:
        open_source(location, 10)
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_locations__unknown_scheme_or_format__is_rejected(tmp_path: Path) -> None:
    (tmp_path / "x.odd").write_text("1")
    for location in ("gopher://x", str(tmp_path / "x.odd")):
        with pytest.raises(MlctlError) as caught:
            open_source(location, 10)
        assert caught.value.code is ErrorCode.INVALID_INPUT
    with pytest.raises(MlctlError, match="cannot be written to"):
        open_sink("gopher://x")
    with pytest.raises(MlctlError, match="--format odd"):
        open_sink(str(tmp_path / "out"), "odd")


@pytest.mark.parametrize(
    ("name", "suffix"),
    [("a/b.csv", ".csv"), ("c.CSV.gz", ".csv"), ("a.b/c.jsonl.zst", ".jsonl"), ("part-0", "")],
)
def test_suffix_of__compressed_name__is_that_of_the_content(name: str, suffix: str) -> None:
    assert suffix_of(name) == suffix


def test_location__scheme__is_recognized() -> None:
    assert [scheme_of(text) for text in ("S3://a", "/a://b", "a/b", "C:/x")] == [
        "s3",
        None,
        None,
        None,
    ]


def test_location__partitioned_dataset__has_its_keys_as_columns(tmp_path: Path) -> None:
    for day, land in ((1, "DE"), (2, "__HIVE_DEFAULT_PARTITION__"), (10, "A%20T")):
        place = tmp_path / f"day={day}" / f"land={land}" / "p.parquet"
        place.parent.mkdir(parents=True)
        parquet.write_table(tables.table(tables.inputs(3)), place)
    source = open_source(str(tmp_path), 10)
    assert source.schema.names == ["id", "x", "day", "land"]
    columns = ["land", "day"]
    units = source.plan(columns, None).units
    pieces = [piece for unit in units for piece in source.read(unit, columns, 10)]
    rows = [row for piece in pieces for row in piece.table.to_pylist()]
    assert rows == [
        {"land": land, "day": day}
        for day, land in ((1, "DE"), (10, "A T"), (2, None))
        for _ in "abc"
    ]


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("rows/a@b", "rows/a@b"),
        (
            "postgresql://me:geheim@host:5/db?table=a&key=id",
            "postgresql://me@host:5/db?table=a&key=id",
        ),
        (
            "postgresql://me:g%40h@/db?sslpassword=geheim&x=1",
            "postgresql://me@/db?sslpassword=...&x=1",
        ),
        ("s3://bucket/rows", "s3://bucket/rows"),
    ],
)
def test_location__password__is_not_shown(location: str, shown: str) -> None:
    assert without_password(location) == shown
