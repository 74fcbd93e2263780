"""Avro messages, with a registry that speaks the documented HTTP API."""

from __future__ import annotations

import base64
import io
import json
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fastavro
import numpy as np
import orjson
import pytest

from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.stream.base import Payload
from mlctl.services.stream.payloads import PayloadRequest, open_payload

SIGNATURE = Signature(
    inputs=(
        TensorSpec(name="x", dtype=Datatype.FP32, shape=(DYNAMIC, 2)),
        TensorSpec(name="word", dtype=Datatype.BYTES, shape=(DYNAMIC,)),
    ),
    outputs=(
        TensorSpec(name="y", dtype=Datatype.FP32, shape=(DYNAMIC, 2)),
        TensorSpec(name="label", dtype=Datatype.BYTES, shape=(DYNAMIC,)),
    ),
)
OUTPUTS = {"y": np.array([[0.5, 1.5]], np.float32), "label": np.array([b"cat"], object)}
RECORD = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "x", "type": {"type": "array", "items": "float"}},
        {"name": "word", "type": ["null", "string"]},
        {"name": "when", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


@dataclass
class Registry:
    """Schemas by number, versions by subject, and what was asked."""

    url: str = ""
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    subjects: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    status: int = 200
    password: str = ""


@pytest.fixture
def registry() -> Iterator[Registry]:
    state = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            _, kind, *rest = self.path.split("/")
            if kind == "schemas":
                self._answer(state.schemas.get(int(rest[1])))
            else:
                self._answer(state.subjects.get(rest[0]))

        def do_POST(self) -> None:
            state.asked.append(self.path)
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.subjects[self.path.split("/")[2]] = body
            state.schemas[99] = body
            self._answer({"id": 99})

        def _answer(self, document: object) -> None:
            wanted = "Basic " + base64.b64encode(state.password.encode()).decode()
            denied = state.password and self.headers.get("Authorization") != wanted
            known = state.status if document is not None or state.status != 200 else 404
            content = json.dumps(document or {"error_code": 40403}).encode()
            self.send_response(401 if denied else known)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


def _avro(registry: Registry, *keep: str, **options: str) -> Payload:
    wanted = PayloadRequest("avro", keep, options={"registry": registry.url, **options})
    return open_payload(wanted, SIGNATURE)


def _message(schema: Any, number: int, record: dict[str, Any]) -> bytes:
    content = io.BytesIO()
    fastavro.schemaless_writer(content, fastavro.parse_schema(schema), record)
    return struct.pack(">BI", 0, number) + content.getvalue()


def _event(number: int = 7, **other: object) -> bytes:
    record = {"id": 5, "x": [1.0, 2.0], "word": "dog", "when": 1000, **other}
    return _message(RECORD, number, record)


def test_avro_payload__record__is_answered_as_json(registry: Registry) -> None:
    registry.schemas[7] = {"schema": json.dumps(RECORD)}
    payload = _avro(registry, "id", "when")
    good = _event()
    values = [good, _event(word=None), good[:-3], b"{}", _event(8), good + b"\0", b"", good]
    (found,) = payload.decode(values)
    assert list(found.kept) == [0, 7]
    assert set(found.rejected) == {1, 2, 3, 4, 5, 6}
    assert found.inputs["word"].tolist() == [b"dog"] * 2
    assert found.inputs["x"].tolist() == [[1, 2]] * 2
    (answer,) = payload.encode(OUTPUTS, [1], found.carried[:1])
    assert orjson.loads(answer) == {
        "id": 5,
        "when": "1970-01-01T00:00:01+00:00",
        "y": [0.5, 1.5],
        "label": "cat",
    }
    payload.decode(values)
    assert registry.asked == ["/schemas/ids/7", "/schemas/ids/8"]


def test_avro_payload__answers__have_a_schema_of_their_own(registry: Registry) -> None:
    registry.schemas[7] = {"schema": json.dumps(RECORD)}
    payload = _avro(registry, "id", subject="answers-value")
    (found,) = payload.decode([_event()])
    (answer,) = payload.encode(OUTPUTS, [1], found.carried)
    assert answer[:5] == struct.pack(">BI", 0, 99)
    schema = fastavro.parse_schema(json.loads(registry.subjects["answers-value"]["schema"]))
    record = fastavro.schemaless_reader(io.BytesIO(answer[5:]), schema, None)
    assert record == {"id": 5, "y": [0.5, 1.5], "label": "cat"}
    with pytest.raises(MlctlError, match="send one row per message"):
        payload.encode({name: np.repeat(a, 2, 0) for name, a in OUTPUTS.items()}, [2])


def test_avro_payload__schema_that_refers_to_another__is_read(registry: Registry) -> None:
    word = {"type": "record", "name": "Word", "fields": [{"name": "text", "type": "string"}]}
    record = {
        **RECORD,
        "fields": [*RECORD["fields"], {"name": "more", "type": "Word"}],
    }
    registry.schemas[7] = {
        "schema": json.dumps(record),
        "references": [{"name": "Word", "subject": "word", "version": 1}],
    }
    registry.subjects["word"] = {"schema": json.dumps(word)}
    named: dict[str, Any] = {}
    fastavro.parse_schema(word, named)
    content = io.BytesIO()
    value = {"id": 5, "x": [1.0, 2.0], "word": "d", "when": 1000, "more": {"text": "t"}}
    fastavro.schemaless_writer(content, fastavro.parse_schema(record, named), value)
    (found,) = _avro(registry).decode([struct.pack(">BI", 0, 7) + content.getvalue()])
    assert list(found.kept) == [0]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (500, ErrorCode.BROKER_UNAVAILABLE),
        (429, ErrorCode.BROKER_UNAVAILABLE),
        (400, ErrorCode.REGISTRY_UNAVAILABLE),
        (403, ErrorCode.UNAUTHENTICATED),
    ],
)
def test_schema_registry__failure__blames_no_message(
    registry: Registry, status: int, code: ErrorCode
) -> None:
    registry.schemas[7] = {"schema": json.dumps(RECORD)}
    payload = _avro(registry)
    registry.status = status
    with pytest.raises(MlctlError) as caught:
        payload.decode([_event()])
    assert caught.value.code is code
    registry.status = 200
    (found,) = payload.decode([_event()])
    assert list(found.kept) == [0]


def test_schemas__registry_unavailable_or_with_a_password__is_handled(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.schemas[7] = {"schema": json.dumps(RECORD)}
    registry.password = "me:secret"
    with pytest.raises(MlctlError, match="401"):
        _avro(registry).decode([_event()])
    monkeypatch.setenv("MLCTL_SCHEMA_REGISTRY_AUTH", "me:secret")
    (found,) = _avro(registry).decode([_event()])
    assert list(found.kept) == [0]
    registry.url = "http://127.0.0.1:1"
    with pytest.raises(MlctlError, match="did not answer") as caught:
        _avro(registry).decode([_event()])
    assert caught.value.code is ErrorCode.BROKER_UNAVAILABLE


def test_registry__credentials_without_a_password__are_rejected_and_not_shown(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLCTL_SCHEMA_REGISTRY_AUTH", "topsecret")
    with pytest.raises(MlctlError, match="not valid") as caught:
        _avro(registry)
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert "topsecret" not in f"{caught.value.message} {caught.value.hint}"


def test_avro_payload__no_registry__is_reported_at_the_start() -> None:
    with pytest.raises(MlctlError, match="needs a schema registry"):
        open_payload(PayloadRequest("avro"), SIGNATURE)
