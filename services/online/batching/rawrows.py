"""Inputs as they came, not arrays yet: many of them become one array at once.

Pure. Only of datatypes whose every bit pattern is a value, of shapes without a zero, and of
the right length: all of that was checked with the first request of the same form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from services.protocol.wire import Declared, decode_raw
from services.runtime.padding import Arrays


@dataclass(frozen=True, slots=True)
class Form:
    """Where in a request's bytes each input is, and what it is."""

    declared: Mapping[str, Declared]
    places: Mapping[str, slice]


class RawRows(Protocol):
    """One request: `data` holds its inputs in the way that `form` says."""

    form: Form
    data: bytes


def arrays_of(inputs: Arrays | RawRows) -> Arrays:
    """The inputs of one request by name; raw ones as read-only views."""
    if isinstance(inputs, dict):
        return inputs
    view, form = memoryview(inputs.data), inputs.form
    return {
        name: decode_raw(declared, view[form.places[name]])
        for name, declared in form.declared.items()
    }


def join_raw(requests: Sequence[RawRows]) -> Arrays:
    """The rows of requests whose inputs have equal names and equally shaped rows, in order."""
    return {
        name: np.frombuffer(
            # Not bytes: a transform may write into what was joined.
            bytearray().join([request.data[request.form.places[name]] for request in requests]),
            declared.dtype,
        ).reshape(-1, *declared.shape[1:])
        for name, declared in requests[0].form.declared.items()
    }
