from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings
from mlctl.services.protocol.codec import V2Codec
from mlctl.services.protocol.compression import deflate
from mlctl.services.protocol.json_body import Numbers, parse_object, parse_request
from mlctl.services.protocol.wire import InferRequest
from tests.services.online.http.test_app import INFER, open_client
from tests.support.listening import until

COUNT = 60_000
FLAT = list(range(COUNT))
TEXT = ",".join(map(str, FLAT))


def codec(dtype: Datatype) -> V2Codec:
    spec = TensorSpec(name="x", dtype=dtype, shape=(DYNAMIC, 4))
    return V2Codec("m", "v", Signature(inputs=(spec,), outputs=(spec,)))


def body(data: str = TEXT, *, dtype: Datatype = Datatype.INT64, rows: int = COUNT // 4) -> bytes:
    tensor = '{"name": "x", "datatype": "%s", "shape": [%d, 4], "data" : [%s]}'
    return (
        '{"inputs": [' + tensor % (dtype.value, rows, data) + '], "id": "\\"data\\":[1"}'
    ).encode()


@pytest.mark.parametrize("dtype", [Datatype.INT64, Datatype.UINT16, Datatype.FP32, Datatype.FP16])
def test_numbers__parsed_in_chunks__are_the_same(dtype: Datatype) -> None:
    assert isinstance(parse_request(body())["inputs"][0]["data"], Numbers)
    request = codec(dtype).decode(body(dtype=dtype), None)
    assert request.id == '"data":[1'
    assert request.inputs["x"].dtype == dtype.numpy_name
    np.testing.assert_array_equal(request.inputs["x"].ravel(), np.array(FLAT, dtype.numpy_name))


@pytest.mark.parametrize(
    "data",
    [
        TEXT + ",",
        "," + TEXT,
        TEXT + ",," + TEXT,
        TEXT.replace(",30000,", ",030000,"),
        TEXT.replace(",30000,", ",NaN,"),
        TEXT.replace(",30000,", ",1.5,"),
        TEXT.replace(",30000,", ",true,"),
        TEXT.replace(",30000,", ",9223372036854775808,"),
        TEXT.replace(",30000,", ", ,"),
        TEXT.replace(",30000,", ",1 1,"),
        TEXT.replace(",30000,", ',"30000",'),
        TEXT.replace(",30000,", ",[30000],"),
        TEXT + ",1",
        TEXT.rpartition(",")[0],
    ],
)
def test_numbers__invalid_in_any_chunk__are_rejected(data: str) -> None:
    with pytest.raises(MlctlError) as caught:
        codec(Datatype.INT64).decode(body(data), None)
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_numbers__declared_shape_is_larger__is_rejected() -> None:
    with pytest.raises(MlctlError, match=r"data has shape \[60000\], expected"):
        codec(Datatype.INT64).decode(body(rows=1 << 28), None)


@pytest.mark.parametrize(
    "content",
    [
        '{"a": {"data": [%s]}, "inputs": []}',
        '{"inputs": [{"parameters": {"data": [%s]}}]}',
        '{"inputs": [{"data": [%s], "data": [%s]}]}',
        '{"inputs": [{"data": [%s}]}',
        '"data": [%s]',
        '{"id": "x"data": [%s]}',
    ],
)
def test_parse_request__numbers_elsewhere_or_broken__is_rejected(content: str) -> None:
    with pytest.raises(MlctlError) as caught:
        parse_request(content.replace("%s", TEXT).encode())
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_parse_request__string_that_looks_like_data__stays_a_string() -> None:
    document: Any = {"id": '"data":[' + TEXT + "]", 'x"data': FLAT, "data\\": FLAT}
    content = json.dumps(document).encode()
    assert parse_request(content) == parse_object(content) == document


async def test_infer__large_body__is_decoded_in_a_thread(
    bundle: VerifiedBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, threads = threading.Event(), []
    decode = V2Codec.decode

    def slow(codec: V2Codec, content: bytes, length: int | None) -> InferRequest:
        threads.append(threading.current_thread().name)
        if len(threads) == 1:
            assert gate.wait(30)
        return decode(codec, content, length)

    monkeypatch.setattr(V2Codec, "decode", slow)
    heavy = body(dtype=Datatype.FP32, rows=4000, data=",".join(["1.0000"] * 16000))

    host = ServedModel(bundle, ServerSettings(), registry=CollectorRegistry())
    await host.start()
    async with open_client(host) as client, asyncio.timeout(30):
        large = asyncio.ensure_future(client.post(INFER, content=heavy))
        small = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0] * 4}]}
        await until(lambda: threads)
        assert (await client.post(INFER, json=small)).status_code == 200
        assert not large.done()
        gate.set()
        assert (await large).json()["outputs"][0]["shape"] == [4000, 4]
        packed = deflate(heavy, "gzip")
        headers = {"content-encoding": "gzip"}
        answer = await client.post(INFER, content=packed, headers=headers)
        assert answer.status_code == 200
        assert (await client.post(INFER, content=heavy[:-9])).status_code == 400
    await host.stop()
    assert [name.startswith("mlctl-decode") for name in threads] == [True, False, True, True]
