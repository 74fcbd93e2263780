"""Rows of an S3: a real client against a server of moto's, which speaks its protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest
from moto.server import ThreadedMotoServer

from bundle.errors import ErrorCode, MlctlError
from services.batch.base import SourceRequest
from services.batch.sources import open_source
from tests.support import tables

_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def known(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An environment that knows the server and has keys, and none of this machine's own."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in _KEYS:
        monkeypatch.setenv(name, "test")
    forget()
    yield
    forget()


def forget() -> None:
    """fsspec keeps a file system with the environment that it was made in."""
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def refused(location: str) -> MlctlError:
    with pytest.raises(MlctlError) as caught:
        open_source(SourceRequest(location, 10))
    return caught.value


@pytest.mark.usefixtures("known")
def test_rows_of_a_folder_come_in_the_order_of_its_files(tmp_path: Path) -> None:
    system = fsspec.filesystem("s3")
    system.mkdir("rows")
    parts = []
    for name in ("a", "b"):
        parts.append(tables.write_rows(tmp_path / f"{name}.parquet", 700))
        system.put(str(tmp_path / f"{name}.parquet"), f"rows/in/{name}.parquet")
    source = open_source(SourceRequest("s3://rows/in/", 500))
    chunks = list(source.scan(["x"], ()))
    found = np.concatenate([tables.matrix(chunk.table["x"]) for chunk in chunks])
    np.testing.assert_array_equal(found, np.concatenate(parts))
    again = open_source(SourceRequest("s3://rows/in/*.parquet", 500)).identity()
    assert again == source.identity()
    assert refused("s3://rows/out/").code is ErrorCode.INVALID_INPUT


@pytest.mark.usefixtures("known")
def test_a_bucket_that_is_not_there_is_told() -> None:
    error = refused("s3://no-such-bucket/in/")
    assert error.code is ErrorCode.INVALID_INPUT
    assert error.message == "s3://no-such-bucket/in/ cannot be read: it does not exist"


@pytest.mark.usefixtures("known")
def test_missing_credentials_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _KEYS:
        monkeypatch.delenv(name)
    forget()
    error = refused("s3://rows/in/")
    assert error.code is ErrorCode.INVALID_INPUT
    assert "there are no credentials for it" in error.message
    assert "credentials" in error.hint


@pytest.mark.usefixtures("known")
def test_a_server_that_is_away_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    forget()
    assert refused("s3://rows/in/").code is ErrorCode.SOURCE_UNAVAILABLE
