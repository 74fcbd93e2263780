"""JSON Schemas of the requests and responses of a model over HTTP, in the form of OpenAPI 3.1."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

from mlctl.bundle.tensors import DYNAMIC, NO_MISSING, Datatype, MissingValues
from mlctl.core.errors import ERROR_TABLE
from mlctl.services.online.openapi.model import ApiTensor
from mlctl.services.online.security.public import CALLERS
from mlctl.services.protocol.json_data import BINARY_ONLY
from mlctl.services.protocol.keys import MAX_KEY_CHARS, MAX_KEYS
from mlctl.services.protocol.wire import MAX_ELEMENTS

Schema = dict[str, Any]
_LONGEST_EXAMPLE = 64
_LARGEST = {Datatype.FP16: 65504.0, Datatype.FP32: 3.4028234663852886e38}
_NULL: Schema = {"type": "null"}
_KEY: Schema = {
    "anyOf": [{"type": "string", "minLength": 1, "maxLength": MAX_KEY_CHARS}, {"type": "integer"}]
}


def request_schema(
    inputs: tuple[ApiTensor, ...],
    outputs: tuple[ApiTensor, ...],
    missing: MissingValues = NO_MISSING,
) -> Schema:
    """Return the schema of an infer request's JSON."""
    required = [tensor.name for tensor in inputs if tensor.name not in missing.optional]
    tensors: Schema = {
        "type": "array",
        "minItems": max(1, len(required)),
        "maxItems": len(inputs),
        "items": _one_of([_input(tensor) for tensor in inputs]),
    }
    if len(inputs) > 1:
        names = [{"contains": {"properties": {"name": {"const": name}}}} for name in required]
        tensors["allOf"] = names
    return {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": ["string", "null"], "description": "Comes back with the answer."},
            "parameters": _request_parameters(),
            "inputs": tensors,
            "outputs": {
                "type": ["array", "null"],
                "maxItems": len(outputs),
                "items": _wanted(outputs),
                "description": "Which outputs to answer with; all of them if there are none here.",
            },
        },
    }


def records_schema(inputs: tuple[ApiTensor, ...], missing: MissingValues) -> Schema:
    """Return the schema of rows of a table: objects with one value for each column."""
    columns: Schema = {}
    for tensor in inputs:
        value = _value(tensor.dtype)
        columns[tensor.name] = (
            {"anyOf": [value, _NULL]} if tensor.name in missing.nullable else value
        )
    row: Schema = {
        "type": "object",
        "required": [tensor.name for tensor in inputs if tensor.name not in missing.optional],
        "properties": columns,
        "additionalProperties": False,
    }
    return {"type": "array", "minItems": 1, "items": row}


def example_request(inputs: tuple[ApiTensor, ...]) -> Schema | None:
    """Return a request of one row of zeros; None if it is long or JSON cannot express it."""
    tensors = []
    for tensor in inputs:
        shape = [1 if size == DYNAMIC else size for size in tensor.shape]
        if tensor.dtype in BINARY_ONLY or prod(shape) > _LONGEST_EXAMPLE:
            return None
        zero = {Datatype.BOOL: False, Datatype.BYTES: "text"}.get(tensor.dtype, 0)
        data = [zero] * prod(shape)
        declared = {"name": tensor.name, "datatype": tensor.dtype.value, "shape": shape}
        tensors.append({**declared, "data": data})
    return {"inputs": tensors}


def response_schema(name: str, digest: str, outputs: tuple[ApiTensor, ...]) -> Schema:
    """Return the schema of an answer's JSON."""
    return {
        "type": "object",
        "required": ["model_name", "model_version", "outputs"],
        "properties": {
            "model_name": {"const": name},
            "model_version": {
                "type": "string",
                "description": "The digest of the model that answered.",
                "examples": [digest],
            },
            "id": {"type": "string"},
            "parameters": {"type": "object"},
            "outputs": {
                "type": "array",
                "maxItems": len(outputs),
                "items": _one_of([_output(tensor) for tensor in outputs]),
            },
        },
    }


def error_schema() -> Schema:
    """Return the schema of every error's JSON."""
    return _object(
        {
            "error": {"type": "string", "description": "What is wrong, in a sentence."},
            "code": {"enum": sorted(code.value for code in CALLERS)},
            "hint": {"type": "string", "description": "What to do."},
        }
    )


def error_codes() -> dict[int, list[str]]:
    """Return the public error codes by HTTP status."""
    found: dict[int, list[str]] = {}
    for code in sorted(CALLERS):
        found.setdefault(ERROR_TABLE[code].http, []).append(code.value)
    return found


def described_schemas() -> dict[str, Schema]:
    """Return the schemas of a server's descriptions of itself."""
    text, count = {"type": "string"}, {"type": "integer", "minimum": 0}
    tensor = _object(
        {
            "name": text,
            "datatype": {"enum": [each.value for each in Datatype]},
            "shape": {"type": "array", "items": {"type": "integer", "minimum": DYNAMIC}},
        }
    )
    tensors = {"type": "array", "items": tensor}
    entry = _object({"name": text, "version": text, "state": text, "reason": text})
    return {
        "Server": _object(
            {"name": text, "version": text, "extensions": {"type": "array", "items": text}}
        ),
        "Live": _object({"live": {"type": "boolean"}}),
        "Ready": _object({"live": {"type": "boolean"}, "ready": {"type": "boolean"}}),
        "ModelReady": _object({"name": text, "ready": {"type": "boolean"}}),
        "Metadata": _object(
            {
                "name": text,
                "versions": {"type": "array", "items": text},
                "platform": text,
                "inputs": tensors,
                "outputs": tensors,
            }
        ),
        "Configuration": {
            "type": "object",
            "required": ["name", "platform", "backend", "max_batch_size", "input", "output"],
            "properties": {"name": text, "max_batch_size": count},
        },
        "Statistics": _object({"model_stats": {"type": "array", "items": {"type": "object"}}}),
        "Index": {"type": "array", "items": entry},
        "IndexQuestion": {"type": "object", "properties": {"ready": {"type": ["boolean", "null"]}}},
    }


def _input(tensor: ApiTensor) -> Schema:
    declared = _declared(tensor)
    shape = _sent_shape(tensor)
    if shape != tensor.shape:
        declared["properties"]["shape"]["prefixItems"].append({"const": shape[-1]})
        declared["properties"]["shape"]["maxItems"] = len(shape)
    sized = {"type": "object", "required": ["binary_data_size"], "properties": _size()}
    binary: Schema = {**declared, "required": ["name", "datatype", "shape", "parameters"]}
    binary["properties"] = {**declared["properties"], "parameters": sized, "data": _NULL}
    binary["title"] = f"{tensor.name}, with its data after the JSON"
    if tensor.dtype in BINARY_ONLY:
        return binary
    plain: Schema = {**declared, "required": ["name", "datatype", "shape", "data"]}
    plain["properties"] = {**declared["properties"], "data": _data(tensor)}
    plain["title"] = tensor.name
    return {"anyOf": [plain, binary]}


def _sent_shape(tensor: ApiTensor) -> tuple[int, ...]:
    """Return the shape of an input with the most dimensions: [n, 1] is accepted for [n]."""
    return (*tensor.shape, 1) if len(tensor.shape) == 1 else tensor.shape


def _output(tensor: ApiTensor) -> Schema:
    declared = _declared(tensor)
    rank = len(tensor.shape)
    sizes = {"type": "array", "items": {"type": "integer", "minimum": 0}}
    declared["properties"]["shape"] = {
        **sizes,
        "minItems": rank,
        "maxItems": rank,
        "description": f"{list(tensor.shape)}, where -1 is any size",
    }
    parameters = {"type": "object", "properties": _size()}
    data = {"type": "array", "items": _value(tensor.dtype)}
    declared["properties"].update({"parameters": parameters, "data": data})
    return {**declared, "required": ["name", "datatype", "shape"]}


def _declared(tensor: ApiTensor) -> Schema:
    size: Schema = {"type": "integer", "minimum": 0, "maximum": MAX_ELEMENTS}
    shape: Schema = {
        "type": "array",
        "minItems": len(tensor.shape),
        "maxItems": len(tensor.shape),
    }
    if tensor.shape:
        shape["prefixItems"] = [size if n == DYNAMIC else {"const": n} for n in tensor.shape]
    properties = {
        "name": {"const": tensor.name},
        "datatype": {"const": tensor.dtype.value},
        "shape": shape,
    }
    return {"type": "object", "properties": properties}


def _data(tensor: ApiTensor) -> Schema:
    """Return the schema of values, flat in row-major order or nested as the shape is."""
    value = _value(tensor.dtype)
    flat: Schema = {"type": "array", "items": value}
    if tensor.elements is not None:
        flat |= {"minItems": tensor.elements, "maxItems": tensor.elements}
    if not tensor.shape:
        return flat
    nested = value
    for size in reversed(_sent_shape(tensor)):
        nested = {"type": "array", "items": nested}
        if size != DYNAMIC:
            nested |= {"minItems": size, "maxItems": size}
    return {"anyOf": [flat, nested]}


def _value(dtype: Datatype) -> Schema:
    if dtype is Datatype.BOOL:
        return {"type": "boolean"}
    if dtype is Datatype.BYTES:
        return {"type": "string"}
    if dtype.value.startswith(("FP", "BF")):
        largest = _LARGEST.get(dtype)
        return {"type": "number"} | (
            {} if largest is None else {"minimum": -largest, "maximum": largest}
        )
    bits = 8 * (dtype.itemsize or 0)
    if dtype.value.startswith("U"):
        return {"type": "integer", "minimum": 0, "maximum": (1 << bits) - 1}
    return {"type": "integer", "minimum": -(1 << bits - 1), "maximum": (1 << bits - 1) - 1}


def _request_parameters() -> Schema:
    keys = {"type": "array", "minItems": 1, "maxItems": MAX_KEYS, "items": _KEY}
    properties: Schema = {
        "timeout": {
            "type": ["integer", "null"],
            "minimum": 1,
            "description": "Microseconds that the caller waits; the server has a limit of its own.",
        },
        "priority": {"enum": ["high", "normal", 0, 1, 2, None]},
        "binary_data_output": {
            "type": ["boolean", "null"],
            "description": "Answer with all outputs as binary data.",
        },
        "entity_key": {
            "anyOf": [*_KEY["anyOf"], keys, {"type": "null"}],
            "description": "The entity keys whose precomputed answers come first, one per row.",
        },
    }
    return {"type": ["object", "null"], "properties": properties}


def _wanted(outputs: tuple[ApiTensor, ...]) -> Schema:
    flag = {"type": ["boolean", "null"]}
    flags = {"type": ["object", "null"], "properties": {"binary_data": flag}}
    names = {"enum": [tensor.name for tensor in outputs]}
    return {
        "type": "object",
        "required": ["name"],
        "properties": {"name": names, "parameters": flags},
    }


def _size() -> Schema:
    what = "Bytes of this tensor among the binary data after the JSON."
    return {"binary_data_size": {"type": "integer", "minimum": 0, "description": what}}


def _object(properties: Schema) -> Schema:
    """Return the schema of an object that has all of `properties`."""
    return {"type": "object", "required": list(properties), "properties": properties}


def _one_of(schemas: Iterable[Schema]) -> Schema:
    found = list(schemas)
    return found[0] if len(found) == 1 else {"anyOf": found}
