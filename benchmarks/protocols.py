"""The protocols in which a server receives one row, and how to read its response.

In the V2 protocols every request differs, as behind a proxy: other tensors, another X-Request-Id,
traceparent and V2 id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import grpc
import httpx
import numpy as np

from benchmarks.loadgen import LoadTarget, RandomField, grpc_call
from benchmarks.workloads import NAME, NetBundle
from mlctl.loadtest.inputs import post
from mlctl.services.protocol.messages import SERVICE, methods

_JSON: Mapping[str, str] = {"Content-Type": "application/json"}
_TOLERANCE = 1e-3
_ID = "1d" * 8
_TRACE_HEADERS: Mapping[str, str] = {
    "X-Request-Id": "2e" * 16,
    "traceparent": f"00-{'3f' * 16}-{'4a' * 8}-01",
}
_IDS = (_ID, _TRACE_HEADERS["X-Request-Id"], *_TRACE_HEADERS["traceparent"].split("-")[1:3])
Headers = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Protocol:
    """One kind of request.

    Attributes:
        transport: http or grpc.
        read: returns `y` from a response's body and headers; None if the server has no model.
        find_fields: returns the bytes of the whole request that differ in every request.
    """

    name: str
    transport: str
    path: str
    body: bytes
    headers: Headers
    read: Callable[[bytes, Headers], np.ndarray] | None
    find_fields: Callable[[bytes], Sequence[RandomField]] = lambda _: ()

    def target(self, port: int) -> LoadTarget:
        """Return the load generator's request for the server at `port`."""
        if self.transport == "grpc":
            request = grpc_call(self.path, self.body, self.headers)
        else:
            request = post(self.path, self.body, {"Host": "127.0.0.1", **self.headers})
        return LoadTarget(self.transport, port, request, self.find_fields(request))

    def check(self, port: int, expected: np.ndarray) -> None:
        """Send one request; SystemExit unless the response is `expected`."""
        if self.read is None:
            return
        if self.transport == "grpc":
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:  # type: ignore[no-untyped-call]
                content, headers = channel.unary_unary(self.path)(self.body, timeout=30), {}
        else:
            url = f"http://127.0.0.1:{port}{self.path}"
            response = httpx.post(url, content=self.body, headers=dict(self.headers), timeout=30)
            if response.status_code != httpx.codes.OK:
                raise SystemExit(f"{self.name}: {response.status_code} {response.text[:300]}")
            content, headers = response.content, dict(response.headers)
        found = self.read(content, headers).reshape(expected.shape)
        if not np.allclose(found, expected, atol=_TOLERANCE):
            raise SystemExit(f"{self.name}: the response differs from ONNX Runtime's")


def v2_protocols(workload: NetBundle) -> tuple[Protocol, ...]:
    """Return V2 over HTTP, binary and JSON, and over gRPC."""
    row = workload.row
    tensor = {"name": "x", "shape": list(row.shape), "datatype": workload.datatype.value}
    outputs = [{"name": "y", "parameters": {"binary_data": True}}]
    size = {"parameters": {"binary_data_size": row.nbytes}}
    head = json.dumps({"id": _ID, "inputs": [{**tensor, **size}], "outputs": outputs}).encode()
    binary_headers = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(head)),
        **_TRACE_HEADERS,
    }
    text = json.dumps({"id": _ID, "inputs": [{**tensor, "data": row.ravel().tolist()}]}).encode()
    message = methods()["ModelInfer"].request(model_name=NAME, id=_ID)
    message.inputs.add(name="x", datatype=workload.datatype.value, shape=list(row.shape))
    message.raw_input_contents.append(row.tobytes())
    metadata = {name.lower(): value for name, value in _TRACE_HEADERS.items()}

    def raw_fields(request: bytes) -> Sequence[RandomField]:
        start = request.index(row.tobytes())
        # The low bits of a float's fraction; the low byte of a token id stays in the vocabulary.
        changed = 2 if row.dtype.kind == "f" else 1
        elements = range(start, start + row.nbytes, row.itemsize)
        return (*_id_fields(request), *(RandomField(at, changed, "b") for at in elements))

    infer, call = f"/v2/models/{NAME}/infer", f"/{SERVICE}/ModelInfer"
    serialized = message.SerializeToString()
    return (
        Protocol(
            "V2 binary",
            "http",
            infer,
            head + row.tobytes(),
            binary_headers,
            _read_binary,
            raw_fields,
        ),
        Protocol(
            "V2 JSON", "http", infer, text, {**_JSON, **_TRACE_HEADERS}, _read_json, _text_fields
        ),
        Protocol("gRPC", "grpc", call, serialized, metadata, _read_message, raw_fields),
    )


def _text_fields(request: bytes) -> Sequence[RandomField]:
    """Return the last digits of each number of "data", and the ids."""
    digits = re.compile(rb"\d\.\d{4,}?(\d{1,8})(?=[,\]])|(\d)(?=[,\]])")
    matches = digits.finditer(request, request.index(b'"data"'))
    spans = (match.span(match.lastindex or 0) for match in matches)
    return (*_id_fields(request), *(RandomField(at, end - at, "d") for at, end in spans))


def _id_fields(request: bytes) -> list[RandomField]:
    return [RandomField(request.index(each.encode()), len(each), "h") for each in _IDS]


def bento_protocol(workload: NetBundle) -> Protocol:
    """Return BentoML's own API: the arguments by name as JSON."""
    body = json.dumps({"x": workload.row.tolist()}).encode()
    return Protocol("own JSON", "http", "/predict", body, _JSON, _read_array)


def echo_protocol(workload: NetBundle) -> Protocol:
    """Return the tensor's bytes for a server without a model."""
    return Protocol("no model", "http", "/", workload.row.tobytes(), _JSON, None)


def _read_binary(content: bytes, headers: Headers) -> np.ndarray:
    return np.frombuffer(content[int(headers["inference-header-content-length"]) :], np.float32)


def _read_json(content: bytes, _: Headers) -> np.ndarray:
    return np.asarray(json.loads(content)["outputs"][0]["data"], np.float32)


def _read_message(content: bytes, _: Headers) -> np.ndarray:
    response = methods()["ModelInfer"].response.FromString(content)
    return np.frombuffer(response.raw_output_contents[0], np.float32)


def _read_array(content: bytes, _: Headers) -> np.ndarray:
    return np.asarray(json.loads(content), np.float32)
