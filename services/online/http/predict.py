"""The typed `/predict`: a JSON object with one argument for each input tensor, or rows as records.

Names of arguments that are no Python identifiers are spelled with underscores. Records are a JSON
array of objects, one per row, keyed by the names of the inputs (see `read_records`). A model with
one output answers with its array, one with several with an object of arrays. A JPEG or PNG file is
the only value of a model whose only input is BYTES `[-1]`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import orjson

from mlctl.bundle.tensors import DYNAMIC, Datatype, MissingValues, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.batching.admission import Hold
from mlctl.services.online.http.calls import CallHandler, HttpCall, Message, Receive, Send
from mlctl.services.online.http.declaration import argument_names, predict_routes
from mlctl.services.online.http.responses import error_response, make_response
from mlctl.services.online.models.repository import Serving
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.observability.calls import PREDICT
from mlctl.services.protocol.json_body import parse_document
from mlctl.services.protocol.json_data import decode_data, decode_nullable, encode_data
from mlctl.services.protocol.priority import PRIORITY_HEADER, Priority, parse_priority
from mlctl.services.protocol.wire import declare, invalid, shown

# The arguments are read on the event loop, at about a microsecond for each value.
MAX_VALUES = 1 << 20
FILES = frozenset({"image/jpeg", "image/png", "audio/wav"})
JSON = "application/json"
_MAX_NAMED = 5


class PredictApp:
    """The ASGI application of `/predict` and `/predict/NAME`."""

    def __init__(self, serving: Serving) -> None:
        self._apis = {
            path: ModelCalls(model) for path, model in predict_routes(serving.models).items()
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        call = HttpCall(scope, receive, send)
        api = self._apis.get(call.path)
        if api is None:
            error = MlctlError(ErrorCode.NOT_FOUND, "there is no such path")
            await call.reject(error_response(error))
        else:
            await api.answer(call)


# Returns the body of an answer with these outputs.
Encode = Callable[[Mapping[str, np.ndarray]], bytes]


class ModelCalls(CallHandler):
    """Answers the calls of one model, at one path."""

    media_types = frozenset({"", JSON}) | FILES

    def __init__(self, model: ServedModel) -> None:
        super().__init__(model, PREDICT)
        arguments = argument_names(model.signature.inputs)
        self._inputs = {arguments[spec.name]: spec for spec in model.signature.inputs}
        self._outputs = argument_names(model.signature.outputs)

    async def answer(self, call: HttpCall) -> None:
        """Answer one call."""
        await call.serve(self, partial(self._answer, call))

    async def _answer(self, call: HttpCall) -> None:
        model, headers = self._served, call.headers
        seconds = model.settings.deadline_ms / 1000
        call.require("POST")
        content_type = headers.get(b"content-type", b"").decode("latin-1")
        media_type = content_type.partition(";")[0].strip().lower()
        if media_type not in self.media_types:
            raise MlctlError(ErrorCode.UNSUPPORTED_MEDIA_TYPE, "the content type is not served")
        if b"content-encoding" in headers:
            raise MlctlError(ErrorCode.UNSUPPORTED_MEDIA_TYPE, "the content encoding is not served")
        priority = Priority.NORMAL
        if PRIORITY_HEADER.encode() in headers:
            priority = parse_priority(headers[PRIORITY_HEADER.encode()].decode("latin-1"))
        length = headers.get(b"content-length", b"")
        if length.isdigit():
            model.check_size(int(length))
        with Hold(model.inflight) as hold:
            body = await call.read(model.check_size, hold, seconds)
            inputs, encode, answered = self.read(media_type, body)
            left = call.arrived + seconds - asyncio.get_running_loop().time()
            answer = await model.infer(inputs, left, priority)
            content = encode(answer.outputs)
        extra = [(b"x-request-id", call.request_id)]
        await call.respond(make_response(200, answered.encode(), content, extra))
        # Not before: a client that disconnects meanwhile would be counted twice.
        model.count(PREDICT, None, call.client)
        if call.record is not None and model.observer is not None:
            model.observer.answered(call.record, inputs, answer, bytes_out=len(content))

    def read(self, media_type: str, body: bytes) -> tuple[dict[str, np.ndarray], Encode, str]:
        """Return the inputs in `body`, what encodes the outputs, and the answer's media type."""
        assert media_type in self.media_types
        if media_type in FILES:
            return self._file(media_type, body), self.encode, JSON
        return self._decode(body), self.encode, JSON

    def _decode(self, body: bytes) -> dict[str, np.ndarray]:
        """Return the inputs by the tensors' names; INVALID_INPUT, PAYLOAD_TOO_LARGE."""
        check_values(body)
        arguments = parse_document(body)
        if isinstance(arguments, list):
            return read_records(arguments, self._served.signature, self._served.missing)
        absent = [name for name, spec in self._inputs.items() if name not in arguments]
        optional = self._served.missing.optional
        missing = [name for name in absent if self._inputs[name].name not in optional]
        if missing:
            names = ", ".join(f"{shown(name)} is missing" for name in missing[:_MAX_NAMED])
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"the arguments are wrong: {names}",
                "GET /docs.json describes the arguments.",
            )
        return {
            spec.name: to_array(spec, arguments[name])
            for name, spec in self._inputs.items()
            if name not in absent
        }

    def _file(self, media_type: str, body: bytes) -> dict[str, np.ndarray]:
        specs = self._served.signature.inputs
        if [(spec.dtype, spec.shape) for spec in specs] != [(Datatype.BYTES, (DYNAMIC,))]:
            raise MlctlError(
                ErrorCode.UNSUPPORTED_MEDIA_TYPE,
                f"{media_type} is for a model whose only input is BYTES [-1]; inputs of this one: "
                + ", ".join(f"{spec.name} {spec.dtype} {list(spec.shape)}" for spec in specs),
            )
        return {specs[0].name: np.array([body], dtype=object)}

    def encode(self, outputs: Mapping[str, np.ndarray]) -> bytes:
        """Return the outputs as JSON: one array, or an object of several."""
        specs = self._served.signature.outputs
        values = {self._outputs[spec.name]: to_json(spec, outputs[spec.name]) for spec in specs}
        document = next(iter(values.values())) if len(values) == 1 else values
        return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def check_values(body: bytes, marks: bytes = b",[{") -> None:
    """Raise PAYLOAD_TOO_LARGE if `body` may have more than MAX_VALUES values.

    Each value of JSON, but the outermost, follows one of the default `marks`.
    """
    if sum(map(body.count, marks)) > MAX_VALUES:
        raise MlctlError(
            ErrorCode.PAYLOAD_TOO_LARGE,
            f"the body has more than {MAX_VALUES} values",
            "Send fewer rows in each request, or binary data to /v2/models/NAME/infer.",
        )


def to_array(spec: TensorSpec, value: Any) -> np.ndarray:
    """Return the array of an argument: nested lists follow the rules of V2's JSON."""
    if isinstance(value, np.ndarray):
        return value
    shape = np.shape(np.array(value, dtype=object))
    return decode_data(declare({spec.name: spec}, spec.name, spec.dtype.value, shape), value)


def read_records(
    rows: list[Any], signature: Signature, missing: MissingValues
) -> dict[str, np.ndarray]:
    """Return the inputs of rows that are objects with one value for each input.

    NaN, or empty text, stands for null and for a column that a row lacks, where `missing` allows
    it. INVALID_INPUT names the row, counted from 0, and the column.
    """
    if not signature.batched:
        raise invalid("the model has no batch dimension, so its inputs are no rows")
    if not rows:
        raise invalid("the body has no rows")
    names = {spec.name for spec in signature.inputs}
    for number, row in enumerate(rows):
        if type(row) is not dict:
            raise invalid(f"row {number} is not an object")
        if unknown := row.keys() - names:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"row {number}: the model has no column {shown(min(unknown))}",
                f"Its columns are {', '.join(spec.name for spec in signature.inputs)}.",
            )
    return {spec.name: _column(spec, rows, missing) for spec in signature.inputs}


def _column(spec: TensorSpec, rows: list[dict[str, Any]], missing: MissingValues) -> np.ndarray:
    name, is_column = spec.name, len(spec.shape) == 1
    values = [row.get(name) for row in rows]
    for number, value in enumerate(values):
        if is_column and type(value) is list:
            raise invalid(f"row {number}: column {name!r}: {shown(value)} is not one value")
        if value is not None:
            continue
        if name not in rows[number] and name not in missing.optional:
            raise invalid(f"row {number}: column {name!r} is missing")
        if not (is_column and name in missing.nullable):
            raise invalid(f"row {number}: column {name!r} is null")
    try:
        return decode_nullable(spec, values, lambda filled: to_array(spec, filled))
    except MlctlError:
        for number, value in enumerate(values):
            if value is not None:
                _check_value(spec, number, value)
        raise


def _check_value(spec: TensorSpec, number: int, value: Any) -> None:
    """Raise the error of a value that the column of `spec` does not take, with its row."""
    try:
        to_array(spec, [value])
    except MlctlError as error:
        reason = error.message.removeprefix(f"tensor {spec.name!r}: ")
        raise invalid(f"row {number}: column {spec.name!r}: {reason}") from None


def to_json(spec: TensorSpec, array: np.ndarray) -> Any:
    """Return an output for `orjson`, nested in its shape; raises what V2's JSON raises."""
    flat = encode_data(spec, array)
    if isinstance(flat, list):
        return np.array(flat, dtype=object).reshape(array.shape).tolist()
    return np.ascontiguousarray(flat).reshape(array.shape)
