"""Raw messages: the bytes of rows in memory order, little endian, without any header.

A row is its inputs one after the other in the order of the signature, each in row-major order;
a message is one row or several. Answers are the outputs in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.stream.base import Decoded
from mlctl.services.stream.payloads import PayloadRequest


class RawPayload:
    """Decodes and encodes rows of fixed size."""

    name = "raw"

    def __init__(self, request: PayloadRequest, signature: Signature) -> None:
        if request.keep:
            raise MlctlError(ErrorCode.INVALID_INPUT, "--keep: raw messages have no fields to keep")
        self._inputs = _layout(signature.inputs)
        self._outputs = _layout(signature.outputs)
        self._bools = [s.name for s in signature.inputs if s.dtype is Datatype.BOOL]
        self._max_bytes = min(request.max_rows * self._inputs.itemsize, request.max_bytes)

    def decode(self, values: Sequence[bytes]) -> Sequence[Decoded]:
        size = self._inputs.itemsize
        sizes = list(map(len, values))
        rejected: dict[int, str] = {}
        kept: Sequence[int] = range(len(values))
        rows = [1] * len(values)
        if sizes.count(size) != len(sizes):
            rejected = {
                index: f"the message has {length} bytes; a row of the model has {size}"
                for index, length in enumerate(sizes)
                if length % size or not 0 < length <= self._max_bytes
            }
            kept = [index for index in kept if index not in rejected]
            rows = [sizes[index] // size for index in kept]
            values = [values[index] for index in kept]
        # Not bytes: a transform may write into what was joined.
        table = np.frombuffer(bytearray().join(values), self._inputs)
        if self._bools and (bad := self._wrong_bools(table, kept, rows)):
            rejected |= dict.fromkeys(bad, "a BOOL byte is neither 0 nor 1")
            good = [position for position, index in enumerate(kept) if index not in bad]
            table = table[np.repeat(~np.isin(kept, list(bad)), rows)]
            kept, rows = [kept[i] for i in good], [rows[i] for i in good]
        names = self._inputs.names or ()
        inputs = {name: np.ascontiguousarray(table[name]) for name in names}
        return [Decoded(inputs, kept, rows, rejected)]

    def encode(
        self,
        outputs: Mapping[str, np.ndarray],
        rows: Sequence[int],
        carried: Sequence[Any] = (),  # noqa: ARG002 - raw answers carry nothing
    ) -> Sequence[bytes]:
        names = self._outputs.names or ()
        table = np.empty(len(outputs[names[0]]), self._outputs)
        for name in names:
            table[name] = outputs[name]
        content, size = table.tobytes(), self._outputs.itemsize
        if sum(rows) == len(rows) and 0 not in rows:
            return [content[start : start + size] for start in range(0, len(content), size)]
        ends = np.cumsum([0, *rows]) * size
        return [content[a:b] for a, b in pairwise(ends.tolist())]

    def _wrong_bools(self, table: np.ndarray, kept: Sequence[int], rows: Sequence[int]) -> set[int]:
        wrong = np.zeros(len(table), bool)
        for name in self._bools:
            found = np.ascontiguousarray(table[name]).view(np.uint8) > 1
            wrong |= found.reshape(len(table), -1).any(axis=1)
        return set(np.repeat(np.asarray(kept), rows)[wrong].tolist())


open_payload = RawPayload


def _layout(specs: Sequence[TensorSpec]) -> np.dtype[Any]:
    for spec in specs:
        if spec.dtype is Datatype.BYTES or DYNAMIC in spec.shape[1:]:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"--payload raw: rows of {spec.name!r} have no fixed size",
                "Use --payload json for this model.",
            )
    layout = np.dtype(
        [(s.name, np.dtype(s.dtype.numpy_name).newbyteorder("<"), s.shape[1:]) for s in specs]
    )
    if not layout.itemsize:
        raise MlctlError(ErrorCode.INVALID_INPUT, "--payload raw: a row of the model has no bytes")
    return layout
