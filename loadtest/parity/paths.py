"""A path of requests to a model, and the values that it cannot carry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mlctl.bundle.arrays import Arrays


class InferencePath(Protocol):
    """One way for requests to reach a model, or a pipeline."""

    name: str

    def limitation(self, arrays: Arrays) -> str | None:
        """Return why this path cannot carry such values at all, else None."""
        ...

    def infer(self, requests: Sequence[Arrays], size: int) -> list[Arrays]:
        """Return the outputs of each request of `size` rows; the last may have fewer rows.

        Any MlctlError except UNAVAILABLE is a result: this path gave no answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class ParityCase:
    """Requests of `size` rows from the rows called `data`, and their expected outputs."""

    data: str
    size: int
    requests: Sequence[Arrays]
    expected: Sequence[Arrays]


def json_limitation(arrays: Arrays) -> str | None:
    """Return why JSON cannot carry `arrays`: NaN and infinity, and FP16 in V2; else None."""
    for name, array in arrays.items():
        if array.dtype == np.float16:
            return f"{name!r} is FP16, which V2 carries as binary data only"
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return f"{name!r} has a NaN or an infinity, which JSON cannot express"
    return text_limitation(arrays)


def text_limitation(arrays: Arrays) -> str | None:
    """Return why text cannot carry `arrays`: bytes that are not UTF-8; else None."""
    for name, array in arrays.items():
        if array.dtype == object and not all(map(_is_text, array.flat)):
            return f"{name!r} has bytes that are not UTF-8"
    return None


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
