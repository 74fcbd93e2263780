"""Requests, read by the server's codecs."""

from __future__ import annotations

from pathlib import Path

import httptools
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.loadtest.inputs import given_rows, grpc_request, http_request, random_rows
from mlctl.services.model.golden import save_golden
from mlctl.services.online.grpc.codec import GrpcCodec
from mlctl.services.protocol.codec import V2Codec
from mlctl.services.protocol.json_data import BINARY_ONLY
from mlctl.services.protocol.messages import methods


def signature(dtype: Datatype = Datatype.FP32, *shape: int) -> Signature:
    spec = TensorSpec(name="x", dtype=dtype, shape=shape or (-1, -1, 3))
    return Signature(inputs=(spec,), outputs=(spec.model_copy(update={"name": "y"}),))


class Parsed:
    """The head and body of a request, read by the server's parser."""

    def __init__(self, request: bytes) -> None:
        self.url = self.body = b""
        self.headers: dict[bytes, bytes] = {}
        self.complete = False
        parser = httptools.HttpRequestParser(self)
        parser.feed_data(request)
        assert self.complete
        assert parser.get_method() == b"POST"

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("dtype", Datatype)
def test_http_request__every_datatype__is_read_by_the_servers_codec(
    dtype: Datatype, binary: bool
) -> None:
    form = signature(dtype)
    inputs = next(random_rows(form, 2, 5))
    if not binary and dtype in BINARY_ONLY:
        with pytest.raises(MlctlError, match="binary"):
            http_request(form, inputs, "/p", {}, binary=False)
        return
    parsed = Parsed(http_request(form, inputs, "/p", {"Host": "h"}, binary=binary))
    assert (parsed.url, parsed.headers[b"host"]) == (b"/p", b"h")
    length = parsed.headers.get(b"inference-header-content-length")
    assert (length is not None) == binary
    request = V2Codec("m", "v", form).decode(parsed.body, None if length is None else int(length))
    assert request.inputs["x"].shape == (2, 5, 3)
    np.testing.assert_array_equal(request.inputs["x"], inputs["x"])
    assert request.outputs == {"y": binary}


@pytest.mark.parametrize("dtype", Datatype)
def test_grpc_request__every_datatype__is_read_by_the_servers_codec(dtype: Datatype) -> None:
    form = signature(dtype)
    inputs = next(random_rows(form, 2, 5))
    message = methods()["ModelInfer"].request.FromString(grpc_request(form, inputs, "m"))
    assert message.model_name == "m"
    decoded = GrpcCodec("m", "v", form).decode(message)
    np.testing.assert_array_equal(decoded.inputs["x"], inputs["x"])


def test_random_rows__drawn_twice__differ_within_and_agree_between_runs() -> None:
    first, second, *_ = random_rows(signature(), 1, 4)
    assert not np.array_equal(first["x"], second["x"])
    assert np.array_equal(first["x"], next(random_rows(signature(), 1, 4))["x"])
    tokens = next(random_rows(signature(Datatype.INT64), 4, 50))["x"]
    assert set(tokens.flat) == {0, 1}


def test_random_rows__no_batch_dimension__accepts_its_own_rows_only() -> None:
    form = signature(Datatype.FP32, 4, 3)
    assert next(random_rows(form, 4, 1))["x"].shape == (4, 3)
    with pytest.raises(MlctlError, match="not 1 rows") as caught:
        next(random_rows(form, 1, 1))
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_given_rows__file_of_rows__are_yielded_in_turn(tmp_path: Path) -> None:
    x = np.arange(5 * 3, dtype=np.float32).reshape(5, 3)
    np.savez(tmp_path / "rows.npz", x=x)
    save_golden(tmp_path / "golden.npz", {"x": x}, {"y": x})
    form = signature(Datatype.FP32, -1, 3)
    for name in ("rows.npz", "golden.npz"):
        parts = [each["x"] for each in given_rows(form, tmp_path / name, 2)]
        np.testing.assert_array_equal(np.concatenate(parts), x[:4])


def test_given_rows__file_that_does_not_match__is_rejected(tmp_path: Path) -> None:
    form = signature(Datatype.FP32, -1, 3)
    path = tmp_path / "rows.npz"
    for arrays, reason in (
        ({"z": np.zeros((4, 3), np.float32)}, "no array for input 'x'"),
        ({"x": np.zeros((4, 3))}, "array 'x' does not fit the model: .*FP64"),
        ({"x": np.zeros((4, 2), np.float32)}, "array 'x' does not fit the model: .*shape"),
        ({"x": np.zeros((1, 3), np.float32)}, "fewer than the 2"),
    ):
        np.savez(path, **arrays)
        with pytest.raises(MlctlError, match=reason):
            list(given_rows(form, path, 2))
    path.write_bytes(b"no archive")
    for unreadable in (path, tmp_path / "missing.npz"):
        with pytest.raises(MlctlError, match=r"neither an \.npz nor a Parquet file|no file"):
            list(given_rows(form, unreadable, 2))


def test_given_rows__table_with_labels_and_missing_values__is_what_optimize_reads(
    tmp_path: Path,
) -> None:
    columns = {"age": [41.0, None, 20.0], "city": ["Oslo", None, "Rome"], "labels": [0, 1, 0]}
    pq.write_table(pa.table(columns), tmp_path / "eval.parquet")
    age = TensorSpec(name="age", dtype=Datatype.FP64, shape=(-1,))
    city = TensorSpec(name="city", dtype=Datatype.BYTES, shape=(-1,))
    found = list(
        given_rows(Signature(inputs=(age, city), outputs=(age,)), tmp_path / "eval.parquet", 1)
    )
    assert [each["city"].tolist() for each in found] == [[b"Oslo"], [b""], [b"Rome"]]
    assert np.isnan(found[1]["age"]).all()
