"""Samples of requests and answers: the document that configures them, and the format of segments.

A server writes Parquet segments into a folder. They become calibration rows, and a rollout compares
two revisions with them. Writer and readers share only this module.

Segments are read in the order of their names, which start with the time of writing. The columns:
`request_id` string, `row` int32 (the row within its request), `at` the time of the answer as UTC
timestamp in microseconds, `digest` string; then `in.NAME` as sent by the caller and `out.NAME` as
answered. A tensor's further dimensions are nested lists, of a fixed
size where the signature has one. BYTES are binary, since not all are text; BF16 is stored as
float32, FP16 as float16. A model without a batch dimension has one row for each request.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter, ValidationError

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import write_atomic

SEGMENT_SUFFIX = ".parquet"
# Columns of a segment beside the tensors', one line per row of a request.
REQUEST_ID, ROW, AT, DIGEST = "request_id", "row", "at", "digest"
INPUT_PREFIX, OUTPUT_PREFIX = "in.", "out."
_SPACE = 1 << 32


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a server records.

    Attributes:
        share: share of the requests, 0 to 1. Only the request id decides, so two servers that get
            the same request either both record it or both do not.
        until: Unix time at which recording ends; None for never.
        flush_seconds: maximum time until a row is on disk.
        max_bytes: maximum size of all segments; the oldest are removed.
        redact: names of tensors that are never written.
        inputs: whether inputs are written too, or only outputs.
    """

    share: float = 0.0
    until: float | None = None
    flush_seconds: float = 60.0
    max_bytes: int = 1 << 30
    redact: tuple[str, ...] = ()
    inputs: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "redact", tuple(self.redact))
        if not 0 <= self.share <= 1:
            raise _invalid(f"share is {self.share!r}, expected 0 to 1")
        if not 0 < self.flush_seconds < math.inf or self.max_bytes <= 0:
            raise _invalid("flush_seconds and max_bytes must be above 0")
        if self.until is not None and not math.isfinite(self.until):
            raise _invalid(f"until is {self.until!r}, expected Unix time")

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the form of `to_json`; INVALID_INPUT if that fails."""
        try:
            document = json.loads(text)
            known = {field.name for field in fields(cls)}
            if not isinstance(document, dict) or not set(document) <= known:
                raise _invalid("a field of the sampling document is unknown")
            # Strict: a name instead of a list of names must not redact single letters.
            return TypeAdapter(cls).validate_json(text, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise _invalid(f"the sampling document: {where}: {first['msg']}") from error
        except (ValueError, RecursionError) as error:
            raise _invalid(f"the sampling document is not JSON: {error}") from error


def is_sampled(request_id: bytes, share: float) -> bool:
    """Whether a request with this id is recorded, for a `share` of 0 to 1."""
    if share >= 1:
        return True
    number = int.from_bytes(blake2b(request_id, digest_size=4).digest())
    return number < share * _SPACE


def write_sampling(path: Path, sampling: Sampling) -> None:
    """Write the document atomically to the file that a server polls."""
    write_atomic(path, sampling.to_json().encode())


def _invalid(message: str) -> MlctlError:
    return MlctlError(ErrorCode.INVALID_INPUT, message)
