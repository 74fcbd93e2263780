"""MLServer's types and codecs, sent by HTTP and by its gRPC stub."""

from __future__ import annotations

import urllib.request

import grpc
import numpy as np
import pandas as pd
from mlserver.codecs import NumpyCodec, NumpyRequestCodec, PandasCodec
from mlserver.grpc.converters import ModelInferRequestConverter, ModelInferResponseConverter
from mlserver.grpc.dataplane_pb2_grpc import GRPCInferenceServiceStub
from mlserver.types import InferenceRequest, InferenceResponse

from tests.clients.report import Calls, Servers

X = np.arange(8, dtype=np.float32).reshape(2, 4)
Y = X * 2 + X.sum(axis=1, keepdims=True)
FRAME = pd.DataFrame({"age": [1.0, 2.0], "income": [10.0, 20.0]})
call = Calls("MLServer")


def send(address: str, model: str, request: InferenceRequest) -> InferenceResponse:
    """Send a request as MLServer's own REST client does: with every field, null or not."""
    url = f"http://{address}/v2/models/{model}/infer"
    headers = {"content-type": "application/json"}
    body = request.model_dump_json().encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
        return InferenceResponse.model_validate_json(answer.read())


@call("`NumpyCodec` and `NumpyRequestCodec`")
def _(servers: Servers) -> None:
    tensor = NumpyCodec.encode_input(name="x", payload=X)
    found = send(servers.tiny, "tiny", InferenceRequest(inputs=[tensor]))
    np.testing.assert_allclose(NumpyCodec.decode_output(found.outputs[0]), Y, rtol=1e-5)
    request = NumpyRequestCodec.encode_request(X)
    request.inputs[0].name = "x"
    found = send(servers.tiny, "tiny", request)
    np.testing.assert_allclose(NumpyCodec.decode_output(found.outputs[0]), Y, rtol=1e-5)


@call("`PandasCodec`: columns of shape [n, 1]")
def _(servers: Servers) -> None:
    found = send(servers.table, "table", PandasCodec.encode_request(FRAME, use_bytes=False))
    assert PandasCodec.decode_response(found)["y"].tolist() == [1010.0, 2020.0]


@call("gRPC with its converters")
def _(servers: Servers) -> None:
    with grpc.insecure_channel(servers.tiny_grpc) as channel:
        request = InferenceRequest(inputs=[NumpyCodec.encode_input(name="x", payload=X)])
        message = ModelInferRequestConverter.from_types(request, "tiny", None)
        answer = GRPCInferenceServiceStub(channel).ModelInfer(message, timeout=30)
        found = ModelInferResponseConverter.to_types(answer)
        np.testing.assert_allclose(NumpyCodec.decode_output(found.outputs[0]), Y, rtol=1e-5)
    with grpc.insecure_channel(servers.table_grpc) as channel:
        request = PandasCodec.encode_request(FRAME)
        message = ModelInferRequestConverter.from_types(request, "table", None)
        answer = GRPCInferenceServiceStub(channel).ModelInfer(message, timeout=30)
        found = ModelInferResponseConverter.to_types(answer)
        assert PandasCodec.decode_response(found)["y"].tolist() == [1010.0, 2020.0]


if __name__ == "__main__":
    call.run()
