"""SageMaker's contract for containers: `GET /ping`, and `POST /invocations` to the default model.

A body is JSON or a file as `/predict` takes it, a V2 request as JSON, or CSV without a header;
the answer has the same form, and is JSON for a file. MLflow's forms, and CSV whose header names the
inputs, are answered as MLflow's scoring server answers them: `{"predictions": ...}`.

SageMaker starts an image with the argument `serve` and calls port 8080, which BENTOML_PORT sets.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from mlctl.bundle.tensors import Datatype, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.http.calls import HttpCall, Message, Receive, Send
from mlctl.services.online.http.mlflow_forms import find_form, read_csv, read_form, split_csv
from mlctl.services.online.http.predict import (
    FILES,
    JSON,
    Encode,
    ModelCalls,
    check_values,
    to_array,
    to_json,
)
from mlctl.services.online.http.responses import Response, json_response
from mlctl.services.online.models.repository import Serving
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.protocol.codec import V2Codec
from mlctl.services.protocol.json_body import parse_document
from mlctl.services.protocol.wire import InferRequest

PING, INVOCATIONS = "/ping", "/invocations"
_CSV = "text/csv"
# One input and one output, whose rows are lines.
_CSV_TENSORS, _CSV_RANK = 2, 2


class SageMakerApp:
    """The ASGI application of `/ping` and `/invocations`."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._calls = Invocations(serving.models[0])

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        call = HttpCall(scope, receive, send)
        if call.path == INVOCATIONS:
            await self._calls.answer(call)
        else:
            await call.answer(self._ping(call))

    async def _ping(self, call: HttpCall) -> Response:
        call.require("GET", "HEAD")
        ready = self._serving.ready
        return json_response(200 if ready else 503, {"ready": ready})


class Invocations(ModelCalls):
    """Answers `/invocations` in the form of the request."""

    media_types = ModelCalls.media_types | {_CSV}

    def __init__(self, model: ServedModel) -> None:
        super().__init__(model)
        self._signature = model.signature
        self._codec = V2Codec(model.name, model.digest, model.signature)

    def read(self, media_type: str, body: bytes) -> tuple[dict[str, np.ndarray], Encode, str]:
        if media_type == _CSV:
            return self._read_csv(body)
        if media_type in FILES:
            return super().read(media_type, body)
        check_values(body)
        document = parse_document(body)
        if not isinstance(document, dict):
            return super().read(media_type, body)
        found, names = document.get("inputs"), {spec.name for spec in self._signature.inputs}
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            form = find_form(document)
            if form is None or form in names:  # an input may be called so
                return super().read(media_type, body)
            inputs = read_form(document, form, self._signature, self._served.missing)
            return inputs, self._write_predictions, JSON
        request = self._codec.decode(body, None)
        if binary := [name for name, wanted in request.outputs.items() if wanted]:
            raise _invalid(f"output {binary[0]!r} is requested as binary data: request it as JSON")
        return dict(request.inputs), partial(self._write_v2, request), JSON

    def _write_predictions(self, outputs: Mapping[str, np.ndarray]) -> bytes:
        return b'{"predictions":%b}' % self.encode(outputs)

    def _write_v2(self, request: InferRequest, outputs: Mapping[str, np.ndarray]) -> bytes:
        return self._codec.encode(request, outputs)[0]

    def _read_csv(self, body: bytes) -> tuple[dict[str, np.ndarray], Encode, str]:
        """Return the inputs that the header names, else the input: a row or a value a line."""
        check_values(body, b",\n")
        try:
            found = split_csv(body.decode(), self._signature) if body.strip() else None
        except (ValueError, csv.Error):  # also of a body that is not UTF-8
            raise _not_csv() from None
        if found is not None:
            inputs = read_csv(*found, self._signature, self._served.missing)
            return inputs, self._write_predictions, JSON
        tensors = (*self._signature.inputs, *self._signature.outputs)
        if len(tensors) != _CSV_TENSORS or any(len(spec.shape) > _CSV_RANK for spec in tensors):
            raise _invalid(
                "CSV without a header that names the inputs is for a model with one input and one "
                "output, each of at most 2 dimensions"
            )
        spec = tensors[0]
        try:
            rows = _parse_csv(spec, body.decode())
        except (ValueError, csv.Error):
            raise _not_csv() from None
        if len(spec.shape) == 1:
            rows = [value for row in rows for value in row]
        return {spec.name: to_array(spec, rows)}, self._write_csv, _CSV

    def _write_csv(self, outputs: Mapping[str, np.ndarray]) -> bytes:
        (spec,) = self._signature.outputs
        array = np.asarray(to_json(spec, outputs[spec.name]))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows(map(str, row) for row in array.reshape(len(array), -1))
        return text.getvalue().encode()


def _parse_csv(spec: TensorSpec, text: str) -> list[list[Any]]:
    """Return the values of each line; ValueError or csv.Error if they are not those of `spec`."""
    if not text.strip():
        raise ValueError
    if spec.dtype is Datatype.BYTES:
        return list(csv.reader(io.StringIO(text), strict=True))
    dtype = np.int64 if spec.dtype.is_integer else np.float64
    rows: list[list[Any]] = np.loadtxt(
        io.StringIO(text), dtype, delimiter=",", comments=None, ndmin=2
    ).tolist()
    return rows


def _not_csv() -> MlctlError:
    return _invalid("the CSV is not lines of equally many values without a header")


def _invalid(message: str) -> MlctlError:
    return MlctlError(ErrorCode.INVALID_INPUT, message)
