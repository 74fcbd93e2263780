"""How requests are to be joined, as far as the user says it: `--batching FILE`.

Whether rows may be joined at all is proved, not asked. A model whose rows influence each other
is served row by row, whatever the file says of sizes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import Batching
from bundle.tensors import DYNAMIC, Datatype, Signature

MAX_ROWS = 4096
_ROWS = 32
_Rows = Annotated[int, Field(ge=1, le=MAX_ROWS)]
_Milliseconds = Annotated[FiniteFloat, Field(ge=0)]


def _doubling(most: int) -> tuple[int, ...]:
    found = [1]
    while found[-1] * 2 < most:
        found.append(found[-1] * 2)
    return tuple(found) if most == 1 else (*found, most)


class BatchingOptions(BaseModel):
    """What a manifest's `batching` says but for what is proved; unset is the default.

    `max_rows` alone has buckets that double; `buckets` alone are all up to the largest.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    max_rows: _Rows | None = None
    buckets: tuple[_Rows, ...] | None = None
    pad: dict[str, int | FiniteFloat] | None = None
    max_wait_ms: _Milliseconds | None = None
    max_queue_rows: Annotated[int, Field(ge=1)] | None = None
    max_queue_ms: _Milliseconds | None = None

    @model_validator(mode="after")
    def _sizes_agree(self) -> Self:
        if not self.sizes or list(self.sizes) != sorted(set(self.sizes)):
            raise ValueError("buckets must ascend without repeats")
        if self.max_rows not in (None, self.sizes[-1]):
            raise ValueError("the last of the buckets must be max_rows")
        return self

    def batching(self, *, row_independent: bool) -> Batching:
        """For the manifest: only single rows, unpadded, if they would influence each other."""
        buckets = self.sizes if row_independent else (1,)
        return Batching(
            max_rows=buckets[-1],
            buckets=buckets,
            row_independent=row_independent,
            pad=self.pad if row_independent else None,
            max_wait_ms=self.max_wait_ms,
            max_queue_rows=self.max_queue_rows,
            max_queue_ms=self.max_queue_ms,
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """The batch sizes of a model whose rows may be joined."""
        return _doubling(self.max_rows or _ROWS) if self.buckets is None else self.buckets

    @property
    def key(self) -> dict[str, str]:
        """What numbers depend on, for a cache's key; nothing for the usual sizes."""
        return {} if self.sizes == DEFAULT.sizes else {"batches": ",".join(map(str, self.sizes))}

    def check(self, signature: Signature) -> None:
        """INVALID_INPUT if it pads what no client of `signature` sends, or what has no length.

        Also if it does so with what is no value of the input's datatype.
        """
        specs = {spec.name: spec for spec in signature.inputs}
        for name, value in (self.pad or {}).items():
            spec = specs.get(name)
            if spec is None or spec.shape[:2] != (DYNAMIC, DYNAMIC):
                raise _invalid(f"pad: {name!r} is no input of the shape [-1, -1, ...]")
            if not _is_of(spec.dtype, value):
                raise _invalid(f"pad: {name!r} is of {spec.dtype}, which {value} is not")


DEFAULT = BatchingOptions()


def read_batching_options(path: Path) -> BatchingOptions:
    """The JSON file `path`; INVALID_INPUT says what is wrong with it."""
    try:
        return BatchingOptions.model_validate_json(path.read_bytes())
    except OSError as error:
        raise _invalid(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first: Any = error.errors(include_url=False, include_context=False)[0]
        where = "".join(f"{part}: " for part in first["loc"])
        raise _invalid(f"{where}{first['msg']}") from error


def _is_of(dtype: Datatype, value: float) -> bool:
    """Whether `dtype` has that number; one of its own may be the nearest to a fraction."""
    if dtype is Datatype.BYTES:
        return False
    kind = np.dtype(dtype.numpy_name)
    if kind.kind == "f":
        return abs(value) <= float(np.finfo(kind).max)
    least, most = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
    return value == int(value) and least <= value <= most


def _invalid(reason: str) -> MlctlError:
    return MlctlError(
        ErrorCode.INVALID_INPUT,
        f"--batching: {reason}",
        'Write JSON such as {"max_rows": 64, "pad": {"ids": 0, "mask": 0}, "max_queue_ms": 50}.',
    )
