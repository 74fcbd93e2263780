"""Rows from a function of the user: data in any form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlctl.optimize.data.rows import Tensors
from mlctl.optimize.data.source import invalid
from mlctl.optimize.data.user_functions import load_function, user_code

_HINT = "The function returns batches: dicts of an array [rows, ...] for each input, and labels."
_END = object()


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """The function `name` (`package.module:function`), called without arguments for each pass.

    Its batches, dicts of arrays, are the chunks, whatever their size.
    """

    name: str

    def chunks(self) -> Iterator[Tensors]:
        function = load_function(self.name)
        with user_code(f"calling {self.name!r}"):
            found = function()
        if isinstance(found, Mapping) or not isinstance(found, Iterable):
            raise invalid(f"{self.name!r} returned {_kind(found)}, expected batches", _HINT)
        batches = iter(found)
        number = 0
        while (batch := self._next(batches, number)) is not _END:
            yield self._arrays(batch, number)
            number += 1

    def _next(self, batches: Iterator[Any], number: int) -> Any:
        with user_code(f"batch {number} of {self.name!r}"):
            return next(batches, _END)

    def _arrays(self, batch: Any, number: int) -> dict[str, np.ndarray]:
        if not isinstance(batch, Mapping) or not all(isinstance(name, str) for name in batch):
            message = f"batch {number} of {self.name!r} is {_kind(batch)}, expected a dict by name"
            raise invalid(message, _HINT)
        with user_code(f"making arrays of batch {number} of {self.name!r}"):
            return {name: _as_array(values) for name, values in batch.items()}


def _as_array(values: Any) -> np.ndarray:
    """Return the rows as an array, of objects if they differ in length."""
    if isinstance(values, np.ndarray):
        return values
    rows = [np.asarray(row) for row in values] if isinstance(values, list | tuple) else [values]
    if len({row.shape for row in rows if isinstance(row, np.ndarray)}) <= 1:
        return np.asarray(values)
    found = np.empty(len(rows), object)
    found[:] = rows
    return found


def _kind(value: Any) -> str:
    return f"a value of type {type(value).__name__}"
