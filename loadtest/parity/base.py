"""The seam of parity: a way to ask a model, and what it cannot carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

Arrays = Mapping[str, np.ndarray]


class Way(Protocol):
    """One way to ask a model, or a pipeline."""

    name: str

    def refusal(self, arrays: Arrays) -> str | None:
        """Why these values cannot be carried this way, by its nature; None if they can."""
        ...

    def answers(self, requests: Sequence[Arrays], size: int) -> list[Arrays]:
        """The outputs for each request, of `size` rows (the last one may have fewer).

        Any MlctlError but UNAVAILABLE is a finding: this way gave no answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class ParityCase:
    """Rows of `data`, a name for people, as requests of `size` rows, and what they must answer."""

    data: str
    size: int
    requests: Sequence[Arrays]
    wanted: Sequence[Arrays]


def not_json(arrays: Arrays) -> str | None:
    """Why JSON cannot carry `arrays`: it has no word for a NaN, and V2 none for halves."""
    for name, array in arrays.items():
        if array.dtype == np.float16:
            return f"{name!r} is FP16, which V2 carries as binary data only"
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return f"{name!r} has a NaN or an infinity, which JSON has no word for"
    return not_text(arrays)


def not_text(arrays: Arrays) -> str | None:
    """Why text cannot carry `arrays`: bytes that are none."""
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
