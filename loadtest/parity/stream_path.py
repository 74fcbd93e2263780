"""The path through a stream: one message per request, in a log in a temporary file."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import orjson

from bundle.errors import ErrorCode, MlctlError
from bundle.tensors import DYNAMIC
from loadtest.inputs import infer_body
from loadtest.parity.batch_path import from_column, to_column
from loadtest.parity.paths import Arrays, json_limitation, text_limitation
from services.online.http.predict import to_array
from services.runtime.scorable import Scorable
from services.stream.base import LinkRequest, Outgoing, StreamUrl
from services.stream.engine import RunSettings
from services.stream.payloads import PayloadRequest
from services.stream.run import StreamConfig, run_stream
from services.stream.tools import browsable
from services.stream.transports import transport_of
from services.stream.window import BatchGoals


class StreamPath:
    """`mlctl stream run` on SQLite; each message is one request, and one call of the model."""

    def __init__(self, model: Scorable, payload: str) -> None:
        self.name = f"stream, {payload}"
        self._model = model
        self._signature = model.signature
        self._payload = payload

    def limitation(self, arrays: Arrays) -> str | None:
        if not self._signature.batched:
            return "the model has no batch dimension"
        if self._payload == "json":
            return json_limitation(arrays)
        for spec in (*self._signature.inputs, *self._signature.outputs):
            if spec.shape[1:].count(DYNAMIC) > 1:
                return f"{spec.name!r} has several open dimensions, which a column cannot keep"
        return text_limitation(arrays)

    def infer(self, requests: Sequence[Arrays], size: int) -> list[Arrays]:  # noqa: ARG002
        messages = [
            Outgoing(self._message(each), str(number).encode())
            for number, each in enumerate(requests)
        ]
        with tempfile.TemporaryDirectory(prefix="mlctl-parity-") as folder:
            values = self._run(messages, StreamUrl("sqlite", str(Path(folder) / "log.db")))
        return [self._answer(values[number]) for number in range(len(messages))]

    def _run(self, messages: Sequence[Outgoing], log: StreamUrl) -> dict[int, bytes]:
        """Return the answer to each message by its number."""
        source, answers, dead = (log.named(topic) for topic in ("in", "out", "dead"))
        with transport_of(log).open_producer(source) as producer:
            producer.publish(messages)
        config = StreamConfig(
            LinkRequest(source, "parity", answers, dead),
            PayloadRequest(self._payload),
            RunSettings(BatchGoals(messages=1), dead_share=1.0, until_empty=True),
        )
        run_stream(self._model, config, lambda _event: None, threading.Event())
        for message in browsable(log).browse(dead):
            reason = b", ".join(value for _name, value in message.headers).decode(errors="replace")
            raise MlctlError(ErrorCode.PARITY_FAILED, f"a message became a dead letter: {reason}")
        found = {int(each.key or b""): each.value for each in browsable(log).browse(answers)}
        if len(found) != len(messages):
            counts = f"{len(found)} answers to {len(messages)} messages"
            raise MlctlError(ErrorCode.PARITY_FAILED, counts)
        return found

    def _message(self, inputs: Arrays) -> bytes:
        if self._payload == "json":
            return infer_body(self._signature, inputs, binary=False)[0]
        import pyarrow as pa

        specs = self._signature.inputs
        table = pa.table({spec.name: to_column(spec, inputs[spec.name]) for spec in specs})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        content: bytes = sink.getvalue().to_pybytes()
        return content

    def _answer(self, value: bytes) -> dict[str, np.ndarray]:
        outputs = self._signature.outputs
        if self._payload == "json":
            document = orjson.loads(value)
            return {spec.name: to_array(spec, document[spec.name]) for spec in outputs}
        import pyarrow as pa

        with pa.ipc.open_stream(value) as reader:
            table = reader.read_all()
        return {spec.name: from_column(spec, table) for spec in outputs}
