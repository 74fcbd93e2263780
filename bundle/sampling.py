"""Samples of what a server was asked and what it answered: how they are asked for and told.

The server writes them as Parquet segments and whoever wants them reads the folder: tomorrow's
calibration rows, and the pairs by which a rollout compares two revisions. Who writes and who
reads share this module and nothing else.

A folder of segments reads in the order of their names, which start with the time of writing.
The columns: `request_id` string, `row` int32 (the row within its request), `at` the time of the
answer as timestamp in microseconds, UTC, `digest` string; then `in.NAME` as the caller sent it
and `out.NAME` as it was answered. A tensor's further dimensions are nested lists, of a fixed
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

from bundle.errors import ErrorCode, MlctlError
from bundle.files import write_atomic

SEGMENT_SUFFIX = ".parquet"
# Columns of a segment beside the tensors', one line per row of a request.
REQUEST_ID, ROW, AT, DIGEST = "request_id", "row", "at", "digest"
INPUT_PREFIX, OUTPUT_PREFIX = "in.", "out."
_SPACE = 1 << 32


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a server is to record.

    Attributes:
        share: of the requests, 0 to 1. The request id alone decides, so that two servers
            that got the same request both record it or both do not.
        until: Unix time at which recording ends by itself; None for never.
        flush_seconds: greatest age of a row that is not on disk yet.
        max_bytes: the oldest segments are removed beyond it.
        redact: names of tensors that are never written.
        inputs: whether the inputs are written too, or the outputs alone.
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
            raise _invalid(f"share = {self.share!r} is not between 0 and 1")
        if not 0 < self.flush_seconds < math.inf or self.max_bytes <= 0:
            raise _invalid("flush_seconds and max_bytes must be above 0")
        if self.until is not None and not math.isfinite(self.until):
            raise _invalid(f"until = {self.until!r} is no time")

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read `to_json`'s form; INVALID_INPUT if it is not one."""
        try:
            document = json.loads(text)
            known = {field.name for field in fields(cls)}
            if not isinstance(document, dict) or not set(document) <= known:
                raise _invalid("a field of the sampling document is unknown")
            # Strictly: a name in place of a list of names must not redact its letters.
            return TypeAdapter(cls).validate_json(text, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise _invalid(f"the sampling document: {where}: {first['msg']}") from error
        except (ValueError, RecursionError) as error:
            raise _invalid(f"the sampling document is not JSON: {error}") from error


def is_sampled(request_id: bytes, share: float) -> bool:
    """Whether the request with this id is one of the `share` that is recorded."""
    if share >= 1:
        return True
    number = int.from_bytes(blake2b(request_id, digest_size=4).digest())
    return number < share * _SPACE


def write_sampling(path: Path, sampling: Sampling) -> None:
    """Put the document where a server polls for it, whole or not at all."""
    write_atomic(path, sampling.to_json().encode())


def _invalid(message: str) -> MlctlError:
    return MlctlError(ErrorCode.INVALID_INPUT, message)
