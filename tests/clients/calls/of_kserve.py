"""KServe's clients of the Open Inference Protocol."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
from kserve import (
    InferenceGRPCClient,
    InferenceRESTClient,
    InferInput,
    InferRequest,
    RESTConfig,
)
from kserve.protocol.infer_type import RequestedOutput

from tests.clients.report import Calls, Servers

X = np.arange(8, dtype=np.float32).reshape(2, 4)
Y = X * 2 + X.sum(axis=1, keepdims=True)
call = Calls("KServe")


def request(*, binary: bool, **options: Any) -> InferRequest:
    tensor = InferInput("x", list(X.shape), "FP32")
    tensor.set_data_from_numpy(X, binary_data=binary)
    return InferRequest("tiny", [tensor], **options)


def same(found: Any) -> None:
    np.testing.assert_allclose(found.outputs[0].as_numpy(), Y, rtol=1e-5)


@call("`InferenceRESTClient`, JSON and binary tensors")
async def _(servers: Servers) -> None:
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        url = f"http://{servers.tiny}"
        assert await client.is_server_live(url)
        assert await client.is_server_ready(url)
        assert await client.is_model_ready(url, "tiny")
        for binary in (False, True):
            same(await client.infer(url, request(binary=binary), "tiny"))


@call("requested outputs as binary data")
async def _(servers: Servers) -> None:
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        wanted = [RequestedOutput("y", {"binary_data": True})]
        sent = request(binary=True, request_outputs=wanted, request_id="7")
        found = await client.infer(f"http://{servers.tiny}", sent, "tiny")
        assert found.id == "7"
        same(found)


@call("`InferenceGRPCClient`")
async def _(servers: Servers) -> None:
    async with InferenceGRPCClient(servers.tiny_grpc) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("tiny")
        for binary in (False, True):
            same(await client.infer(request(binary=binary)))


@call("a request without an id, parameters and outputs (null in its JSON)")
async def _(servers: Servers) -> None:
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        sent, _ = request(binary=False).to_rest()
        for name in ("id", "parameters", "outputs"):
            sent[name] = None
        same(await client.infer(f"http://{servers.tiny}", sent, "tiny"))


@call("the V1 protocol (`:predict`)", works=False)
async def _(servers: Servers) -> None:
    async with InferenceRESTClient(RESTConfig(protocol="v1")) as client:
        try:
            await client.infer(f"http://{servers.tiny}", {"instances": X.tolist()}, "tiny")
        except httpx.HTTPStatusError as error:
            assert error.response.status_code == 404, error
        else:
            raise AssertionError("it was accepted")


if __name__ == "__main__":
    call.run()
