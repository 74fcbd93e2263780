"""Padding: join variable-length sequences into one batch, and round batches up to fixed sizes.

Padding is removed from the outputs, so every request gets the answer that it would get alone, as
far as the model ignores padding. The start-up checks that too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from mlctl.bundle.arrays import Arrays
from mlctl.bundle.manifest import Batching
from mlctl.bundle.tensors import DYNAMIC, Signature
from mlctl.services.model.session import Session

# Sequences up to this length share one bucket; longer ones are sorted by powers of two, so at most
# half of a batch is padding.
_SHORTEST = 16
# The largest batch that a server measures beyond the bundle's sizes.
MAX_MEASURED_ROWS = 256


def shape_key(inputs: Mapping[str, np.ndarray]) -> Hashable:
    """Return a key that is equal for requests whose rows have equal shapes, in any order."""
    if len(inputs) == 1:
        ((name, array),) = inputs.items()
        return name, array.shape[1:]
    return tuple(sorted((name, array.shape[1:]) for name, array in inputs.items()))


class LengthPadding:
    """Pads the second dimension of the inputs in `pad`, with the value given there."""

    def __init__(self, signature: Signature, pad: Mapping[str, float]) -> None:
        self.names = frozenset(pad)
        self._pad = pad
        self._outputs = {
            spec.name
            for spec in signature.outputs
            if len(spec.shape) > 1 and spec.shape[1] == DYNAMIC
        }

    def length(self, inputs: Mapping[str, np.ndarray]) -> int | None:
        """Return the length of a request's sequences; None (no padding) if they differ."""
        lengths = {inputs[name].shape[1] for name in self._pad}
        return lengths.pop() if len(lengths) == 1 else None

    def key(self, inputs: Mapping[str, np.ndarray]) -> Hashable:
        """Return a key that is equal for requests that may share a batch: one bucket of lengths."""
        length = self.length(inputs)
        if length is None:
            return shape_key(inputs)
        bucket = (max(length, _SHORTEST) - 1).bit_length()
        rest = sorted(
            (name, array.shape[2:] if name in self._pad else array.shape[1:])
            for name, array in inputs.items()
        )
        return bucket, tuple(rest)

    def pad_to_longest(self, requests: Sequence[Arrays]) -> list[Arrays]:
        """Pad all requests to the length of the longest."""
        longest = max(self.length(inputs) or 0 for inputs in requests)
        return [self.pad_to(inputs, longest) for inputs in requests]

    def pad_to(self, inputs: Arrays, length: int) -> Arrays:
        """Pad one request to `length`; return it unchanged if it is not shorter."""
        current = self.length(inputs)
        if current is None or current >= length:
            return inputs
        return {
            name: _pad_columns(array, length, self._pad[name]) if name in self._pad else array
            for name, array in inputs.items()
        }

    def trim(self, outputs: Arrays, padded: int, own: int) -> Arrays:
        """Trim the answer of a request that was padded from length `own` to `padded`."""
        return {
            name: array[:, :own] if name in self._outputs and array.shape[1] == padded else array
            for name, array in outputs.items()
        }


def padded_sizes(batching: Batching) -> tuple[int, ...]:
    """Return the sizes that batches are padded to: the bundle's, and those a server may measure."""
    sizes = [*batching.buckets]
    while batching.measure_larger and sizes[-1] * 2 <= MAX_MEASURED_ROWS:
        sizes.append(sizes[-1] * 2)
    return tuple(sizes)


class RowPaddedSession:
    """A session that rounds batches up to a size in `buckets`; larger batches pass unchanged.

    For runtimes that are fast only with known shapes, and models with independent rows: the last
    row is repeated, and the surplus answers are dropped.
    """

    def __init__(self, inner: Session, buckets: Sequence[int]) -> None:
        self.provider = inner.provider
        self._inner = inner
        self._buckets = buckets

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        rows = next(iter(inputs.values())).shape[0]
        index = bisect_left(self._buckets, rows)
        if index == len(self._buckets) or self._buckets[index] == rows:
            return self._inner.run(inputs)
        size = self._buckets[index]
        outputs = self._inner.run({name: _pad_rows(array, size) for name, array in inputs.items()})
        return {
            name: array[:rows] if array.ndim and array.shape[0] == size else array
            for name, array in outputs.items()
        }


def _pad_rows(array: np.ndarray, rows: int) -> np.ndarray:
    padded = np.empty((rows, *array.shape[1:]), array.dtype)
    padded[: array.shape[0]] = array
    padded[array.shape[0] :] = array[-1]
    return padded


def _pad_columns(array: np.ndarray, columns: int, value: float) -> np.ndarray:
    padded = np.full((array.shape[0], columns, *array.shape[2:]), value, array.dtype)
    padded[:, : array.shape[1]] = array
    return padded
