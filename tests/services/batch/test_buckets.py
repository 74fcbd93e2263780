"""Rows in buckets: the real clients against moto's S3 and the emulator of Google's storage."""

from __future__ import annotations

import base64
import importlib
import importlib.util
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.ports import free_ports
from mlctl.services.batch.job import BatchConfig
from mlctl.services.batch.sinks import open_sink
from mlctl.services.batch.sources import open_source
from mlctl.services.batch.storage import open_storage
from tests.support import tables
from tests.support.bundles import expected
from tests.support.s3 import KEYS, s3_client, s3_server
from tests.support.wait import wait_until


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


def check_job(system: Any, out: str, bundle: VerifiedBundle, folder: Path) -> None:
    """Run a job into the folder `out` of a bucket, again, again without a unit, and anew."""
    x = tables.write_rows(folder / "in.parquet", 3000)
    path = out.partition("://")[2]
    system.pipe_file(f"{path}-other/part-0.parquet", b"x")
    system.put_file(str(folder / "in.parquet"), f"{path}-in/in.parquet")
    source = f"{out}-in/"
    report = tables.score(bundle, source, open_sink(out))
    system.pipe_file(f"{path}/sub/part-000000-ffffffffffff.parquet", b"y")
    assert (report.rows, report.totals.rows) == (3000, 3000)
    assert tables.score(bundle, source, open_sink(out)).rows == 0
    system.invalidate_cache()
    system.rm_file(system.glob(f"{path}/_mlctl/000001-*.json")[0])
    system.rm_file(f"{path}/_SUCCESS")
    assert tables.score(bundle, source, open_sink(out)).rows == 1000
    config = BatchConfig(keep=("id", "x"))
    tables.score(bundle, source, open_sink(out), config=config, restart=True)
    system.invalidate_cache()
    (part,) = system.glob(f"{path}/part-*")
    found = parquet.read_table(pa.BufferReader(system.cat_file(part))).sort_by("id")
    np.testing.assert_allclose(tables.matrix(found["y"]), expected(x), rtol=1e-4, atol=1e-5)
    assert system.cat_file(f"{path}/sub/part-000000-ffffffffffff.parquet") == b"y"
    assert system.exists(f"{path}-other/part-0.parquet")


@pytest.mark.usefixtures("known")
def test_s3__job_in_a_bucket__resumes_and_restart_touches_no_other_objects(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    system = fsspec.filesystem("s3")
    system.makedirs("scores", exist_ok=True)
    check_job(system, "s3://scores/day", bundle, tmp_path)


@pytest.mark.skipif(
    importlib.util.find_spec("gcp_storage_emulator") is None
    or importlib.util.find_spec("gcsfs") is None,
    reason="gcsfs or gcp-storage-emulator is not installed",
)
def test_gs__job_in_a_bucket__resumes_and_restart_touches_no_other_objects(
    bundle: VerifiedBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = importlib.import_module("gcp_storage_emulator.server").create_server(
        "127.0.0.1", port := free_ports(1)[0], in_memory=True, default_bucket="scores"
    )
    server.start()
    try:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
        check_job(fsspec.filesystem("gs"), "gs://scores/day", bundle, tmp_path)
    finally:
        fsspec.get_filesystem_class("gs").clear_instance_cache()
        server.stop()


def accepts(address: tuple[str, int]) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(address) == 0


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("adlfs") is None or shutil.which("azurite-blob") is None,
    reason="adlfs or azurite is not installed",
)
def test_az__job_in_a_bucket__resumes_and_restart_touches_no_other_objects(
    bundle: VerifiedBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = base64.b64encode(os.urandom(64)).decode()
    monkeypatch.setenv("AZURITE_ACCOUNTS", f"mlctl:{key}")
    address = "127.0.0.1", free_ports(1)[0]
    where = ["--blobHost", address[0], "--blobPort", f"{address[1]}", "--location", f"{tmp_path}"]
    quiet = ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    with subprocess.Popen(["azurite-blob", *where, *quiet]) as emulator:
        try:
            wait_until(lambda: accepts(address))
            monkeypatch.setenv(
                "AZURE_STORAGE_CONNECTION_STRING",
                "DefaultEndpointsProtocol=http;AccountName=mlctl;"
                f"AccountKey={key};BlobEndpoint=http://{address[0]}:{address[1]}/mlctl;",
            )
            system = fsspec.filesystem("az")
            system.mkdir("scores")
            check_job(system, "az://scores/day", bundle, tmp_path)
            assert refused("az://absent/in/").code is ErrorCode.INVALID_INPUT
        finally:
            fsspec.get_filesystem_class("az").clear_instance_cache()
            emulator.terminate()


def test_part__while_it_is_written__has_no_file_that_a_kill_would_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    storage = open_storage("memory://scores")
    with storage.create("part") as file:
        file.write(b"rows")
        file.flush()
        assert not [*tmp_path.iterdir()]
    assert storage.read(["part"]) == {"part": b"rows"}
    storage.delete(["part"])
