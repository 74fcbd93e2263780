"""The user's options for batching: `--batching FILE`.

Whether requests may be batched at all is proved and no option. A model whose rows depend on each
other is served row by row, regardless of the sizes in the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from mlctl.bundle.manifest import Batching
from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature
from mlctl.core.errors import ErrorCode, MlctlError

MAX_ROWS = 4096
_ROWS = 32
_Rows = Annotated[int, Field(ge=1, le=MAX_ROWS)]
_Milliseconds = Annotated[FiniteFloat, Field(ge=0)]


def _doubling(max_rows: int) -> tuple[int, ...]:
    found = [1]
    while found[-1] * 2 < max_rows:
        found.append(found[-1] * 2)
    return tuple(found) if max_rows == 1 else (*found, max_rows)


class BatchingOptions(BaseModel):
    """The fields of a manifest's `batching` that are not proved; unset takes the default.

    With `max_rows` alone the buckets double up to it; with `buckets` alone the last is `max_rows`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    max_rows: _Rows | None = None
    buckets: tuple[_Rows, ...] | None = None
    pad: dict[str, int | FiniteFloat] | None = None
    max_wait_ms: _Milliseconds | None = None
    max_queue_rows: Annotated[int, Field(ge=1)] | None = None
    max_queue_ms: _Milliseconds | None = None
    max_length: Annotated[int, Field(ge=1)] | None = None
    max_body_bytes: Annotated[int, Field(ge=1, le=(1 << 31) - 1)] | None = None

    @model_validator(mode="after")
    def _sizes_agree(self) -> Self:
        if not self.sizes or list(self.sizes) != sorted(set(self.sizes)):
            raise ValueError("buckets must ascend without repeats")
        if self.max_rows not in (None, self.sizes[-1]):
            raise ValueError("the last of the buckets must be max_rows")
        return self

    def batching(self, *, row_independent: bool) -> Batching:
        """Return the manifest's entry: single rows, unpadded, if rows depend on each other."""
        buckets = self.sizes if row_independent else (1,)
        return Batching(
            max_rows=buckets[-1],
            buckets=buckets,
            row_independent=row_independent,
            measure_larger=True if row_independent and not self.fixed else None,
            pad=self.pad if row_independent else None,
            max_wait_ms=self.max_wait_ms,
            max_queue_rows=self.max_queue_rows,
            max_queue_ms=self.max_queue_ms,
            max_length=self.max_length,
            max_body_bytes=self.max_body_bytes,
        )

    @property
    def fixed(self) -> bool:
        """Whether the options name the sizes."""
        return self.max_rows is not None or self.buckets is not None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The batch sizes of a model with independent rows."""
        return _doubling(self.max_rows or _ROWS) if self.buckets is None else self.buckets

    @property
    def key(self) -> dict[str, str]:
        """The part of a cache key that numbers depend on; empty for the default sizes."""
        return {} if self.sizes == DEFAULT.sizes else {"batches": ",".join(map(str, self.sizes))}

    def check(self, signature: Signature) -> None:
        """Reject padding of an input that does not exist or has no length; INVALID_INPUT.

        Also for a value that the input's datatype does not have.
        """
        specs = {spec.name: spec for spec in signature.inputs}
        for name, value in (self.pad or {}).items():
            spec = specs.get(name)
            if spec is None or spec.shape[:2] != (DYNAMIC, DYNAMIC):
                raise _invalid(f"pad: {name!r} is not an input of shape [-1, -1, ...]")
            if not _is_of(spec.dtype, value):
                raise _invalid(f"pad: {value} is not a value of {name!r}, which has {spec.dtype}")


DEFAULT = BatchingOptions()


def read_batching_options(path: Path) -> BatchingOptions:
    """Read the JSON file `path`; INVALID_INPUT names the faulty field."""
    try:
        return BatchingOptions.model_validate_json(path.read_bytes())
    except OSError as error:
        raise _invalid(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first: Any = error.errors(include_url=False, include_context=False)[0]
        where = "".join(f"{part}: " for part in first["loc"])
        raise _invalid(f"{where}{first['msg']}") from error


def _is_of(dtype: Datatype, value: float) -> bool:
    """Return whether `dtype` has that number; floats may round it."""
    if dtype is Datatype.BYTES:
        return False
    kind = np.dtype(dtype.numpy_name)
    if kind.kind == "f":
        return abs(value) <= float(np.finfo(kind).max)
    low, high = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
    return value == int(value) and low <= value <= high


def _invalid(reason: str) -> MlctlError:
    return MlctlError(
        ErrorCode.INVALID_INPUT,
        f"--batching: {reason}",
        'Write JSON such as {"max_rows": 64, "pad": {"ids": 0, "mask": 0}, "max_queue_ms": 50}.',
    )
