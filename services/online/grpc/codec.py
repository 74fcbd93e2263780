"""ModelInfer messages to and from arrays: raw or typed contents in, raw contents out.

Messages are protobuf classes made at run time, so they are typed as Any here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from mlctl.bundle.tensors import Datatype, Signature
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.protocol.json_body import MAX_VALUES
from mlctl.services.protocol.keys import check_keys
from mlctl.services.protocol.wire import (
    FINAL_RESPONSE,
    WANTS_FINAL,
    Declared,
    InferRequest,
    check_outputs,
    check_parameters,
    check_priority,
    check_timeout,
    declare,
    decode_raw,
    encode_raw,
    invalid,
)

FIELDS: Mapping[Datatype, str] = MappingProxyType(
    {
        Datatype.BOOL: "bool_contents",
        Datatype.INT8: "int_contents",
        Datatype.INT16: "int_contents",
        Datatype.INT32: "int_contents",
        Datatype.INT64: "int64_contents",
        Datatype.UINT8: "uint_contents",
        Datatype.UINT16: "uint_contents",
        Datatype.UINT32: "uint_contents",
        Datatype.UINT64: "uint64_contents",
        Datatype.FP32: "fp32_contents",
        Datatype.FP64: "fp64_contents",
        Datatype.BYTES: "bytes_contents",
    }
)
# The types of fields that also carry narrower datatypes.
_FIELD_TYPES: Mapping[str, type] = MappingProxyType(
    {"int_contents": np.int32, "uint_contents": np.uint32}
)


class GrpcCodec:
    """Decodes requests to one model and encodes its responses; `outputs` are its output specs."""

    def __init__(self, name: str, version: str, signature: Signature) -> None:
        self._name = name
        self._version = version
        self._inputs = {spec.name: spec for spec in signature.inputs}
        self.outputs = {spec.name: spec for spec in signature.outputs}

    def decode(self, message: Any) -> InferRequest:
        """Return the request in a ModelInferRequest; INVALID_INPUT names the tensor and reason."""
        parameters = _parameters(message, "the request")
        raw = message.raw_input_contents
        if raw and len(raw) != len(message.inputs):
            raise invalid(
                f"raw_input_contents has {len(raw)} elements for {len(message.inputs)} inputs"
            )
        inputs: dict[str, np.ndarray] = {}
        for index, tensor in enumerate(message.inputs):
            declared = declare(self._inputs, tensor.name, tensor.datatype, tensor.shape)
            _parameters(tensor, f"tensor {tensor.name!r}")
            if tensor.name in inputs:
                raise invalid(f"input {tensor.name!r} is given twice")
            if raw:
                inputs[tensor.name] = _from_raw(declared, tensor, raw[index])
            else:
                inputs[tensor.name] = _from_contents(declared, tensor.contents)
        return InferRequest(
            message.id,
            inputs,
            self._requested(message),
            check_timeout(parameters.get("timeout")),
            check_priority(parameters.get("priority")),
            check_keys(parameters) if parameters else (),
        )

    def declarations(self, message: Any) -> tuple[Declared, ...]:
        """Return the inputs that a valid ModelInferRequest declares, in its order."""
        return tuple(
            declare(self._inputs, tensor.name, tensor.datatype, tensor.shape)
            for tensor in message.inputs
        )

    def encode(
        self,
        response: type[Any],
        request: InferRequest,
        outputs: Mapping[str, np.ndarray],
        parameters: Mapping[str, str | float] | None = None,
    ) -> Any:
        """Return the ModelInferResponse to `request`."""
        message = response(model_name=self._name, model_version=self._version, id=request.id)
        for name in request.outputs:
            spec, array = self.outputs[name], outputs[name]
            message.outputs.add(name=name, datatype=spec.dtype.value, shape=array.shape)
            message.raw_output_contents.append(encode_raw(spec.dtype, array))
        for name, value in (parameters or {}).items():
            parameter = message.parameters[name]
            if isinstance(value, str):
                parameter.string_param = value
            else:
                parameter.double_param = value
        return message

    def encode_piece(
        self, response: type[Any], request: InferRequest, outputs: Mapping[str, np.ndarray]
    ) -> Any:
        """Return the ModelInferResponse with one piece of the answer to `request`."""
        message = self.encode(response, request, outputs)
        message.parameters[FINAL_RESPONSE].bool_param = False
        return message

    def encode_final(self, response: type[Any], request_id: str) -> Any:
        """Return the ModelInferResponse without outputs that ends a stream."""
        message = response(model_name=self._name, model_version=self._version, id=request_id)
        message.parameters[FINAL_RESPONSE].bool_param = True
        return message

    def _requested(self, message: Any) -> Mapping[str, bool]:
        names = [output.name for output in message.outputs]
        check_outputs(self.outputs, names)
        for output in message.outputs:
            _parameters(output, f"output {output.name!r}")
        return dict.fromkeys(names or self.outputs, True)


def wants_final(message: Any) -> bool:
    """Return whether the client of a stream requests a final response without outputs."""
    return WANTS_FINAL in message.parameters and message.parameters[WANTS_FINAL].bool_param


def _parameters(message: Any, owner: str) -> dict[str, Any]:
    """Return the parameters of a message as plain values, None for one without a value."""
    if not message.parameters:
        return {}
    check_parameters(message.parameters, owner)
    found = {}
    for name, parameter in message.parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        found[name] = None if kind is None else getattr(parameter, kind)
    return found


def _from_raw(declared: Declared, tensor: Any, data: bytes) -> np.ndarray:
    if tensor.HasField("contents"):
        raise invalid(f"tensor {tensor.name!r} has both contents and raw_input_contents")
    return decode_raw(declared, data)


def _from_contents(declared: Declared, contents: Any) -> np.ndarray:
    spec = declared.spec
    field = FIELDS.get(spec.dtype)
    if field is None:
        raise invalid(f"tensor {spec.name!r}: {spec.dtype.value} needs raw_input_contents")
    return from_values(declared, getattr(contents, field), field)


def from_values(declared: Declared, values: Any, owner: str) -> np.ndarray:
    """Return the values of a repeated field as an array; errors call the field `owner`."""
    spec = declared.spec
    if declared.count > MAX_VALUES:  # each is made a Python object on the way
        raise MlctlError(
            ErrorCode.PAYLOAD_TOO_LARGE,
            f"tensor {spec.name!r}: {declared.count} elements in {owner}, "
            f"the limit is {MAX_VALUES}",
            "Send the tensor in raw_input_contents of the V2 protocol.",
        )
    if len(values) != declared.count:
        raise invalid(
            f"tensor {spec.name!r}: {owner} has {len(values)} elements, "
            f"expected {declared.count} for shape {list(declared.shape)}"
        )
    wanted = np.dtype(spec.dtype.numpy_name)
    if spec.dtype is Datatype.BYTES:
        array = np.empty(declared.count, dtype=object)
        array[:] = values
        return array.reshape(declared.shape)
    carried = _FIELD_TYPES.get(FIELDS[spec.dtype], wanted)
    array = np.fromiter(values, carried, declared.count)
    if array.dtype == wanted:
        return array.reshape(declared.shape)
    limits = np.iinfo(wanted)
    if array.min(initial=0) < limits.min or array.max(initial=0) > limits.max:
        raise invalid(f"tensor {spec.name!r}: a value is outside of {limits.min} to {limits.max}")
    return array.astype(wanted).reshape(declared.shape)
