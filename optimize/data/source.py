"""The seam between forms of storage and the checks: a source gives its rows chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from bundle.errors import ErrorCode, MlctlError
from optimize.data.rows import Tensors

# Large enough that a chunk's overhead is nothing, small beside any model.
CHUNK_BYTES = 8 * 1024 * 1024


class RowSource(Protocol):
    """Rows under a user's own names; each call of `chunks` goes through all of them again."""

    @property
    def name(self) -> str:
        """How errors call the source."""

    def chunks(self) -> Iterator[Tensors]:
        """Arrays [rows of the chunk, ...]; INVALID_INPUT says what cannot be read."""


def chunk_rows(chunk_bytes: int, row_bytes: int) -> int:
    """How many rows of `row_bytes` make a chunk; at least 1."""
    return max(1, chunk_bytes // max(1, row_bytes))


def invalid(message: str, hint: str | None = None) -> MlctlError:
    """INVALID_INPUT about evaluation data, by default with how to store it."""
    return MlctlError(
        ErrorCode.INVALID_INPUT,
        message,
        hint or "Save the rows with numpy.savez(FILE, INPUT_NAME=..., labels=...).",
    )
