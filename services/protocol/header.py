"""The JSON part of a V2 request: what it declares, checked, before any tensor is made.

Pure and without the binary data, so that a parsed header can be cached. An optional field that is
null is absent, as the clients of other servers send it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from mlctl.bundle.tensors import TensorSpec
from mlctl.services.protocol.json_body import parse_request
from mlctl.services.protocol.keys import check_keys
from mlctl.services.protocol.priority import Priority
from mlctl.services.protocol.wire import (
    Declared,
    check_outputs,
    check_parameters,
    check_priority,
    check_timeout,
    declare,
    invalid,
    shown,
)

Specs = Mapping[str, TensorSpec]
_NONE: Mapping[str, Any] = MappingProxyType({})


class Part(NamedTuple):
    """One input: `size` bytes of the binary data, else the JSON value `data`."""

    declared: Declared
    size: int | None
    data: object = None


class Header(NamedTuple):
    """A request without its binary data. `outputs` are the names with whether they are binary."""

    id: str
    parts: tuple[Part, ...]
    outputs: Mapping[str, bool]
    timeout: float | None = None
    priority: Priority = Priority.NORMAL
    keys: tuple[str, ...] = ()

    @property
    def reusable(self) -> bool:
        """Whether it depends on nothing but its JSON and the id: all data is binary."""
        return not self.keys and all(part.size is not None for part in self.parts)


def read_header(content: bytes, inputs: Specs, outputs: Specs) -> Header:
    """The header in `content`; INVALID_INPUT names the tensor, the field and what is expected."""
    document = parse_request(content)
    parameters = _parameters(document, "the request")
    name = document.get("id")
    if not isinstance(name, str | None):
        raise invalid("field 'id' must be a string")
    keys = check_keys(parameters) if parameters else ()
    return Header(
        id=name or "",
        parts=() if keys and not document.get("inputs") else _read_inputs(document, inputs),
        outputs=_read_outputs(
            document, outputs, binary=_flag(parameters, "binary_data_output", default=False)
        ),
        timeout=check_timeout(parameters.get("timeout")),
        priority=check_priority(parameters.get("priority")),
        keys=keys,
    )


def _read_inputs(document: dict[str, Any], specs: Specs) -> tuple[Part, ...]:
    tensors = document.get("inputs")
    if not isinstance(tensors, list) or not tensors:
        raise invalid("field 'inputs' must be an array of tensors")
    parts: dict[str, Part] = {}
    for tensor in tensors:
        part = _read_input(tensor, specs)
        name = part.declared.spec.name
        if name in parts:
            raise invalid(f"input {name!r} is given twice")
        parts[name] = part
    return tuple(parts.values())


def _read_input(tensor: object, specs: Specs) -> Part:
    if not isinstance(tensor, dict):
        raise invalid("field 'inputs': an element is not an object")
    shape = tensor.get("shape")
    if not isinstance(shape, list):
        raise invalid(f"tensor {shown(tensor.get('name'))}: field 'shape' must be an array")
    declared = declare(specs, tensor.get("name"), tensor.get("datatype"), shape)
    owner = f"tensor {declared.spec.name!r}"
    size, data = _parameters(tensor, owner).get("binary_data_size"), tensor.get("data")
    if size is None:
        if data is None:
            raise invalid(f"{owner} has neither data nor the parameter binary_data_size")
        return Part(declared, None, data)
    if type(size) is not int or size < 0:
        raise invalid(f"{owner}: binary_data_size must be a number of bytes")
    if data is not None:
        raise invalid(f"{owner} has both data and binary_data_size")
    return Part(declared, size)


def _read_outputs(document: dict[str, Any], specs: Specs, *, binary: bool) -> dict[str, bool]:
    wanted = document.get("outputs")
    if wanted is None or wanted == []:
        return dict.fromkeys(specs, binary)
    if not isinstance(wanted, list) or not all(isinstance(item, dict) for item in wanted):
        raise invalid("field 'outputs' must be an array of objects")
    check_outputs(specs, [item.get("name") for item in wanted])
    return {
        item["name"]: _flag(
            _parameters(item, f"output {item['name']!r}"), "binary_data", default=binary
        )
        for item in wanted
    }


def _parameters(document: dict[str, Any], owner: str) -> Mapping[str, Any]:
    value = document.get("parameters")
    if value is None:
        return _NONE
    if not isinstance(value, dict):
        raise invalid(f"field 'parameters' of {owner} must be an object")
    present = {name: each for name, each in value.items() if each is not None}
    check_parameters(present, owner)
    return present


def _flag(parameters: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise invalid(f"parameter {name!r} must be true or false")
    return value
