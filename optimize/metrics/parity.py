"""Distance of a variant's answers from the source model's: pure numpy, no runtime.

Plain cosine is not used: outputs that share a large constant part have a cosine near 1
even if the part that differs between rows is lost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mlctl.bundle.output_kinds import OutputKind, agreement, output_kind, same_steps
from mlctl.optimize.data import Tensors
from mlctl.optimize.data.rows import row_slices

# A value that moves by a smaller share of its largest one is constant but for float32's rounding.
_ROUNDING = 1e-5


@dataclass(frozen=True, slots=True)
class OutputParity:
    """Distances of one output over all rows.

    `relative_l2` is the norm of the difference over the norm of the reference;
    `agreement` the share of rows that agree, None for outputs that are compared by distance only;
    `step_agreement` the share of steps that do, of sequences. `varies` says whether the reference
    differs between rows by more than rounding; if not, the centred cosine is that of noise.
    """

    kind: OutputKind
    max_abs_error: float
    relative_l2: float
    centred_cosine: float
    agreement: float | None
    step_agreement: float | None = None
    varies: bool = True


@dataclass(frozen=True, slots=True)
class Parity:
    """Distances of every output by name; the properties are the worst of all outputs."""

    outputs: Mapping[str, OutputParity]

    @property
    def max_abs_error(self) -> float:
        return max(each.max_abs_error for each in self.outputs.values())

    @property
    def relative_l2(self) -> float:
        return max(each.relative_l2 for each in self.outputs.values())

    @property
    def centred_cosine(self) -> float:
        every = self.outputs.values()
        varying = [each for each in every if each.varies]
        return min(each.centred_cosine for each in varying or every)

    @property
    def agreement(self) -> float | None:
        shares = (each.agreement for each in self.outputs.values())
        return min((share for share in shares if share is not None), default=None)

    @property
    def constant(self) -> tuple[str, ...]:
        """The names of the outputs in which the reference does not vary."""
        return tuple(name for name, each in self.outputs.items() if not each.varies)

    def record(self) -> dict[str, Any]:
        """Return the worst numbers and those of each output."""
        return {
            "max_abs_error": self.max_abs_error,
            "relative_l2": self.relative_l2,
            "centred_cosine": self.centred_cosine,
            "agreement": self.agreement,
            "outputs": {name: asdict(each) for name, each in self.outputs.items()},
        }


def compare(reference: Tensors, found: Tensors) -> Parity:
    """Return the parity of `found` with `reference`, whose numbers are finite.

    ValueError if an output is missing, has another shape, or is not finite.
    """
    return Parity({name: _compare(name, array, found) for name, array in reference.items()})


def centred_cosine(reference: np.ndarray, found: np.ndarray) -> float:
    """Return the cosine of all values after subtracting each column's mean over `reference`.

    1 if neither varies, 0 if only one of them does.
    """
    return _distances(reference, found)[2]


def finite(tensors: Tensors) -> bool:
    """Return whether no floating point output has a NaN or an infinity."""
    floats = (array for array in tensors.values() if np.issubdtype(array.dtype, np.floating))
    return all(bool(np.isfinite(array).all()) for array in floats)


def _compare(name: str, reference: np.ndarray, outputs: Tensors) -> OutputParity:
    found = outputs.get(name)
    if found is None:
        raise ValueError(f"output {name!r} is missing")
    if found.shape != reference.shape:
        raise ValueError(
            f"output {name!r} has shape {list(found.shape)}, expected {list(reference.shape)}"
        )
    if not finite({name: found}):
        raise ValueError(f"output {name!r} has NaN or infinite values")
    kind = output_kind(name, reference)
    agreeing = agreement(kind, reference, found)
    share = None if agreeing is None else float(agreeing.mean())
    steps = None
    if kind is OutputKind.CLASS_SEQUENCES:
        steps = float(same_steps(reference, found).mean())
    if reference.dtype.kind not in "fiub":
        return OutputParity(kind, 0.0, 0.0, 1.0, share, varies=_varies(reference))
    max_abs_error, relative_l2, cosine = _distances(reference, found)
    return OutputParity(
        kind=kind,
        max_abs_error=max_abs_error,
        relative_l2=relative_l2,
        centred_cosine=cosine,
        agreement=share,
        step_agreement=steps,
        varies=_varies(reference),
    )


def _varies(reference: np.ndarray) -> bool:
    if reference.dtype.kind != "f":
        return bool((reference != reference[:1]).any())
    low, high = (edge(reference, axis=0).astype(np.float64) for edge in (np.min, np.max))
    return bool((high - low > _ROUNDING * np.maximum(high, -low)).any())


def _distances(reference: np.ndarray, found: np.ndarray) -> tuple[float, float, float]:
    """Return the largest difference, the relative L2 and the centred cosine.

    The relative L2 is the norm of the difference if the reference's norm is zero. Computed in
    float64, a few rows at a time: of large outputs one copy would be a gigabyte.
    """
    centre = reference.mean(axis=0, dtype=np.float64, keepdims=True)
    largest = 0.0
    sums = np.zeros(5)
    for part in row_slices(reference):
        first, second = reference[part].astype(np.float64), found[part].astype(np.float64)
        error = first - second
        largest = max(largest, float(np.abs(error).max(initial=0.0)))
        sums[:2] += np.vdot(error, error), np.vdot(first, first)
        first -= centre
        second -= centre
        sums[2:] += np.vdot(first, second), np.vdot(first, first), np.vdot(second, second)
    distance, norm, own, other = (math.sqrt(each) for each in sums[[0, 1, 3, 4]])
    cosine = 1.0 if max(own, other) == 0.0 else 0.0
    if min(own, other) > 0.0:
        cosine = min(1.0, max(-1.0, float(sums[2]) / own / other))
    return largest, distance / (norm or 1.0), cosine
