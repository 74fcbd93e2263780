"""The ways to ask a server for one row, and how to read its answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import grpc
import httpx
import numpy as np

from benchmarks.native import RandomField, grpc_call
from benchmarks.workloads import NAME, Workload, typed_json, v2_binary, v2_json, v2_message
from loadtest.inputs import post
from services.protocol.messages import SERVICE, methods

_INFER = f"/v2/models/{NAME}/infer"
_JSON: Mapping[str, str] = {"Content-Type": "application/json"}
_TOLERANCE = 1e-3
_IDENTITY = "1d" * 8
_TRACED: Mapping[str, str] = {
    "X-Request-Id": "2e" * 16,
    "traceparent": f"00-{'3f' * 16}-{'4a' * 8}-01",
}


@dataclass(frozen=True, slots=True)
class Way:
    """One request: `kind` is http or grpc; `read` makes `y` of an answer's body and headers."""

    name: str
    kind: str
    path: str
    body: bytes
    headers: Mapping[str, str]
    read: Callable[[bytes, Mapping[str, str]], np.ndarray] | None
    varies: Callable[[bytes], tuple[RandomField, ...]] = lambda _: ()

    @property
    def fields(self) -> tuple[RandomField, ...]:
        """The bytes of `request` that differ in each."""
        return self.varies(self.request)

    @property
    def request(self) -> bytes:
        """The bytes that the load client sends."""
        if self.kind == "grpc":
            return grpc_call(self.path, self.body, self.headers)
        return post(self.path, self.body, {"Host": "127.0.0.1", **self.headers})

    def check(self, port: int, expected: np.ndarray) -> None:
        """Ask once; SystemExit unless the answer is `expected`."""
        if self.read is None:
            return
        if self.kind == "grpc":
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:  # type: ignore[no-untyped-call]
                content, headers = channel.unary_unary(self.path)(self.body, timeout=30), {}
        else:
            url = f"http://127.0.0.1:{port}{self.path}"
            answer = httpx.post(url, content=self.body, headers=dict(self.headers), timeout=30)
            if answer.status_code != httpx.codes.OK:
                raise SystemExit(f"{self.name}: {answer.status_code} {answer.text[:300]}")
            content, headers = answer.content, dict(answer.headers)
        found = self.read(content, headers).reshape(expected.shape)
        if not np.allclose(found, expected, atol=_TOLERANCE):
            raise SystemExit(f"{self.name}: the answer is not what ONNX Runtime says")


def v2_ways(workload: Workload) -> tuple[Way, ...]:
    """V2 over HTTP, binary and JSON, and over gRPC."""
    body, length = v2_binary(workload)
    binary = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(length),
    }
    infer = f"/{SERVICE}/ModelInfer"
    return (
        Way("V2 binary", "http", _INFER, body, binary, _read_binary),
        Way("V2 JSON", "http", _INFER, v2_json(workload), _JSON, _read_json),
        Way("gRPC", "grpc", infer, v2_message(workload), {}, _read_message),
    )


def mixed_ways(workload: Workload) -> tuple[Way, ...]:
    """The same, each request with other tensors, X-Request-Id, traceparent and V2 id."""
    body, length = v2_binary(workload, _IDENTITY)
    binary = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(length),
        **_TRACED,
    }
    infer = f"/{SERVICE}/ModelInfer"
    message = v2_message(workload, _IDENTITY)
    metadata = {name.lower(): value for name, value in _TRACED.items()}

    def raw(request: bytes) -> tuple[RandomField, ...]:
        start = request.index(workload.row.tobytes())
        size = workload.row.itemsize
        # Of a float the last bits of its fraction; of a word's number as much as is in the table.
        changed = 2 if workload.row.dtype.kind == "f" else 1
        rows = range(start, start + workload.row.nbytes, size)
        return (*_marks(request), *(RandomField(at, changed, "b") for at in rows))

    def text(request: bytes) -> tuple[RandomField, ...]:
        values = request.index(b'"data"')
        digits = re.compile(rb"\d\.\d{4,}?(\d{1,8})(?=[,\]])|(\d)(?=[,\]])")
        found = [match.span(match.lastindex or 0) for match in digits.finditer(request, values)]
        return (*_marks(request), *(RandomField(start, end - start, "d") for start, end in found))

    return (
        Way("V2 binary, mixed", "http", _INFER, body, binary, _read_binary, raw),
        Way(
            "V2 JSON, mixed",
            "http",
            _INFER,
            v2_json(workload, _IDENTITY),
            {**_JSON, **_TRACED},
            _read_json,
            text,
        ),
        Way("gRPC, mixed", "grpc", infer, message, metadata, _read_message, raw),
    )


def _marks(request: bytes) -> list[RandomField]:
    """Where the ids of a request are."""
    marks = (_IDENTITY, _TRACED["X-Request-Id"], *_TRACED["traceparent"].split("-")[1:3])
    return [RandomField(request.index(mark.encode()), len(mark), "h") for mark in marks]


def typed_way(workload: Workload) -> Way:
    """The arguments by name as JSON: BentoML's and LitServe's own API."""
    return Way("own JSON", "http", "/predict", typed_json(workload), _JSON, _read_typed)


def bare_way(workload: Workload) -> Way:
    """The bytes of a V2 binary request to something that has no model."""
    body, _ = v2_binary(workload)
    return Way("no model", "http", "/", body, _JSON, None)


def _read_binary(content: bytes, headers: Mapping[str, str]) -> np.ndarray:
    return np.frombuffer(content[int(headers["inference-header-content-length"]) :], np.float32)


def _read_json(content: bytes, _: Mapping[str, str]) -> np.ndarray:
    return np.asarray(json.loads(content)["outputs"][0]["data"], np.float32)


def _read_message(content: bytes, _: Mapping[str, str]) -> np.ndarray:
    answer = methods()["ModelInfer"].response.FromString(content)
    return np.frombuffer(answer.raw_output_contents[0], np.float32)


def _read_typed(content: bytes, _: Mapping[str, str]) -> np.ndarray:
    document = json.loads(content)
    return np.asarray(document["y"] if isinstance(document, dict) else document, np.float32)
