"""Rows of an S3: a real client against a server of moto's, which speaks its protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from bundle.errors import ErrorCode, MlctlError
from bundle.verify import VerifiedBundle
from services.batch.job import BatchConfig
from services.batch.sinks import open_sink
from services.batch.sources import open_source
from tests.support import tables
from tests.support.bundles import expected
from tests.support.s3 import KEYS, s3_client, s3_server


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with s3_server() as found:
        yield found


@pytest.fixture
def known(address: str) -> Iterator[None]:
    with s3_client(address):
        yield


def forget() -> None:
    """Forget the file system that was made in another environment."""
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def refused(location: str) -> MlctlError:
    with pytest.raises(MlctlError) as caught:
        open_source(location, 10)
    return caught.value


@pytest.mark.usefixtures("known")
def test_s3__folder__is_read_in_the_order_of_its_files(tmp_path: Path) -> None:
    system = fsspec.filesystem("s3")
    system.makedirs("rows", exist_ok=True)
    parts = []
    for name in ("a", "b"):
        parts.append(tables.write_rows(tmp_path / f"{name}.parquet", 700))
        system.put(str(tmp_path / f"{name}.parquet"), f"rows/in/{name}.parquet")
    source = open_source("s3://rows/in/", 500)
    units = source.plan(["x"], None).units
    pieces = [piece for unit in units for piece in source.read(unit, ["x"], 500)]
    found = np.concatenate([tables.matrix(piece.table["x"]) for piece in pieces])
    np.testing.assert_array_equal(found, np.concatenate(parts))
    again = open_source("s3://rows/in/*.parquet", 500).identity()
    assert again == source.identity()
    assert refused("s3://rows/out/").code is ErrorCode.INVALID_INPUT


@pytest.mark.usefixtures("known")
def test_s3__missing_bucket__is_reported() -> None:
    error = refused("s3://no-such-bucket/in/")
    assert error.code is ErrorCode.INVALID_INPUT
    assert error.message == "s3://no-such-bucket/in/ cannot be read: it does not exist"


@pytest.mark.usefixtures("known")
def test_s3__no_credentials__are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.delenv(name)
    forget()
    error = refused("s3://rows/in/")
    assert error.code is ErrorCode.INVALID_INPUT
    assert "no credentials were found" in error.message
    assert "credentials" in error.hint


@pytest.mark.usefixtures("known")
def test_s3__unreachable_server__is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    forget()
    assert refused("s3://rows/in/").code is ErrorCode.SOURCE_UNAVAILABLE


@pytest.mark.usefixtures("known")
def test_s3__job_in_a_bucket__resumes_and_restart_touches_no_other_objects(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    system = fsspec.filesystem("s3")
    system.makedirs("scores", exist_ok=True)
    x = tables.write_rows(tmp_path / "in.parquet", 3000)
    out = "s3://scores/day"
    system.pipe_file("scores/day-other/part-0.parquet", b"x")
    report = tables.score(bundle, tmp_path / "in.parquet", open_sink(out))
    system.pipe_file("scores/day/sub/part-000000-ffffffffffff.parquet", b"y")
    assert (report.rows, report.totals.rows) == (3000, 3000)
    assert tables.score(bundle, tmp_path / "in.parquet", open_sink(out)).rows == 0
    system.invalidate_cache()
    system.rm_file(system.glob("scores/day/_mlctl/000001-*.json")[0])
    system.rm_file("scores/day/_SUCCESS")
    assert tables.score(bundle, tmp_path / "in.parquet", open_sink(out)).rows == 1000
    config = BatchConfig(keep=("id", "x"))
    tables.score(bundle, tmp_path / "in.parquet", open_sink(out), config=config, restart=True)
    system.invalidate_cache()
    (part,) = system.glob("scores/day/part-*")
    found = parquet.read_table(pa.BufferReader(system.cat_file(part))).sort_by("id")
    np.testing.assert_allclose(tables.matrix(found["y"]), expected(x), rtol=1e-4, atol=1e-5)
    assert system.cat_file("scores/day/sub/part-000000-ffffffffffff.parquet") == b"y"
    assert system.exists("scores/day-other/part-0.parquet")
