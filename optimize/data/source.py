"""Sources of rows: a protocol between storage formats and checks, and the names of columns."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from mlctl.bundle.tensors import Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.text import printable, suggestion
from mlctl.optimize.data.rows import Tensors

# Large enough that a chunk's overhead does not matter, small beside any model.
CHUNK_BYTES = 8 * 1024 * 1024

LABELS = "labels"
LABEL_NAMES = (LABELS, "label", "y")
# The columns that feed an input, or the labels, by its name.
ColumnMap = Mapping[str, tuple[str, ...]]
NO_MAP: ColumnMap = MappingProxyType({})
# The fill value of each input whose rows may differ in length.
Pad = Mapping[str, float]
NO_PAD: Pad = MappingProxyType({})
_SINGLE_INPUT_NAMES = ("x", "inputs")


class RowSource(Protocol):
    """Rows under the user's names; each call of `chunks` reads all of them again."""

    @property
    def name(self) -> str:
        """The source's name in errors."""

    def chunks(self) -> Iterator[Tensors]:
        """Yield arrays [rows of the chunk, ...]; INVALID_INPUT if they cannot be read."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The input that each array feeds, by the array's name, and the name of the labels' array."""

    inputs: Mapping[str, TensorSpec]
    labels: str | None


def find_columns(
    names: Iterable[str], signature: Signature, optional: Container[str] = ()
) -> Columns:
    """Assign arrays to inputs; INVALID_INPUT for one that is missing, unknown or ambiguous.

    The only input may be called `x` or `inputs`; inputs in `optional` may be absent. An array that
    is neither an input nor labels is rejected: it is usually one of them misspelt.
    """
    found = sorted(names)
    present = [spec for spec in signature.inputs if spec.name in found or spec.name not in optional]
    inputs = {_input_name(spec, found, signature): spec for spec in present}
    rest = [name for name in found if name not in inputs]
    labels = one_label(name for name in rest if name in LABEL_NAMES)
    reject_unknown((name for name in rest if name not in LABEL_NAMES), signature)
    return Columns(inputs, labels[0] if labels else None)


def one_label(names: Iterable[str]) -> list[str]:
    """Return the only name of labels, or none; INVALID_INPUT for several."""
    found = list(names)
    if len(found) > 1:
        raise invalid(f"labels are given twice: as {' and as '.join(map(repr, found))}")
    return found


def reject_unknown(names: Iterable[str], signature: Signature) -> None:
    """Reject arrays or columns that are neither an input nor labels; INVALID_INPUT."""
    if unknown := sorted(names):
        expected = [spec.name for spec in signature.inputs] + ["labels"]
        near = suggestion(unknown[0], expected, "the model takes")
        raise invalid(
            f"{printable(unknown[0])!r} is neither an input nor labels; {near}",
            "Rename it, leave it out, or name the labels of a Parquet file: --map labels=COLUMN.",
        )


def chunk_rows(chunk_bytes: int, row_bytes: int) -> int:
    """Return how many rows of `row_bytes` make a chunk; at least 1."""
    return max(1, chunk_bytes // max(1, row_bytes))


def invalid(message: str, hint: str | None = None) -> MlctlError:
    """Return INVALID_INPUT about evaluation data; the default hint says how to store it."""
    return MlctlError(
        ErrorCode.INVALID_INPUT,
        message,
        hint or "An .npz file has an array, a Parquet file a column, for each input and `labels`.",
    )


def _input_name(spec: TensorSpec, found: list[str], signature: Signature) -> str:
    names = (spec.name, *_SINGLE_INPUT_NAMES) if len(signature.inputs) == 1 else (spec.name,)
    for name in names:
        if name in found:
            return name
    near = suggestion(spec.name, found, "it has")
    raise invalid(f"no array for input {spec.name!r} in the data; {near}")
