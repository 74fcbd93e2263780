"""The path through a stream: one message per request, in a log in a temporary file."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from mlctl.bundle.arrays import Arrays
from mlctl.bundle.tensors import Datatype, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.loadtest.parity.paths import json_limitation
from mlctl.services.layout.scorable import Scorable
from mlctl.services.online.http.predict import to_array
from mlctl.services.protocol.json_data import encode_data
from mlctl.services.stream.base import ConnectionRequest, Outgoing, StreamUrl
from mlctl.services.stream.batching import BatchGoals
from mlctl.services.stream.engine import RunSettings
from mlctl.services.stream.payloads import PayloadRequest
from mlctl.services.stream.start import StreamConfig, run_stream
from mlctl.services.stream.transports import transport_of


class StreamPath:
    """`mlctl stream run` on SQLite; each message is one request, and one call of the model."""

    name = "stream, json"

    def __init__(self, model: Scorable) -> None:
        self._model = model
        self._signature = model.signature

    def limitation(self, arrays: Arrays) -> str | None:
        if not self._signature.batched:
            return "the model has no batch dimension"
        return json_limitation({name: self._present(name, arrays[name]) for name in arrays})

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
        source, answers, dead = (log.with_topic(topic) for topic in ("in", "out", "dead"))
        with transport_of(log).open_producer(source) as producer:
            producer.publish(messages)
        config = StreamConfig(
            ConnectionRequest(source, "parity", answers, dead),
            PayloadRequest(),
            RunSettings(BatchGoals(messages=1), dead_share=1.0, until_empty=True),
        )
        run_stream(self._model, config, lambda _event: None, threading.Event())
        for message in transport_of(log).browse(dead):
            values = [value or b"" for _name, value in message.headers]
            reason = b", ".join(values).decode(errors="replace")
            raise MlctlError(ErrorCode.PARITY_FAILED, f"a message became a dead letter: {reason}")
        found = {int(each.key or b""): each.content for each in transport_of(log).browse(answers)}
        if len(found) != len(messages):
            counts = f"{len(found)} answers to {len(messages)} messages"
            raise MlctlError(ErrorCode.PARITY_FAILED, counts)
        return found

    def _present(self, name: str, array: np.ndarray) -> np.ndarray:
        """Return the values that a message has; a NaN of a nullable input is null."""
        if array.dtype.kind != "f":
            return array
        nullable = name in self._model.missing.nullable
        return array[~np.isnan(array)].astype(np.float64) if nullable else array.astype(np.float64)

    def _message(self, inputs: Arrays) -> bytes:
        """Return an object with the rows of each input; NaN as null."""
        rows = {spec.name: _rows(spec, inputs[spec.name]) for spec in self._signature.inputs}
        return orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY)

    def _answer(self, value: bytes) -> dict[str, np.ndarray]:
        document = orjson.loads(value)
        return {spec.name: to_array(spec, document[spec.name]) for spec in self._signature.outputs}


def _rows(spec: TensorSpec, array: np.ndarray) -> Any:
    if spec.dtype is Datatype.BYTES:
        texts = np.array(encode_data(spec, array), object)
        return texts.reshape(array.shape).tolist()
    return np.ascontiguousarray(array)
