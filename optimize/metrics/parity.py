"""How far a variant's answers are from the source model's: pure numpy, no runtime.

Plain cosine is not here on purpose: outputs that share a large constant part have a
cosine near 1 whatever happens to the part that differs between rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optimize.data import Tensors

# Rows are said to be of length 1 within what fp16 arithmetic leaves of it.
_UNIT = 1e-3


@dataclass(frozen=True, slots=True)
class Parity:
    """Distances over all rows and outputs, `agreement` over the rows of the first output.

    `max_abs_error` and `relative_l2` (norm of the difference over norm of the
    reference) are the worst of any output, `centred_cosine` the lowest;
    `agreement` is None for outputs that are not scores of shape [rows, classes >= 2].
    """

    max_abs_error: float
    relative_l2: float
    centred_cosine: float
    agreement: float | None


def compare(reference: Tensors, found: Tensors) -> Parity:
    """The parity of `found` with `reference`: same names, same shapes, finite reference.

    ValueError says what differs in form, or that `found` is not finite.
    """
    pairs = [_pair(name, array, found) for name, array in reference.items()]
    first = next(iter(reference))
    return Parity(
        max_abs_error=max(_max_abs_error(want, have) for want, have in pairs),
        relative_l2=max(_relative_l2(want, have) for want, have in pairs),
        centred_cosine=min(centred_cosine(want, have) for want, have in pairs),
        agreement=agreement(reference[first], found[first]),
    )


def centred_cosine(want: np.ndarray, have: np.ndarray) -> float:
    """Cosine of all values after taking from each column its mean over the rows of `want`.

    1 if neither varies, 0 if only one of them does.
    """
    centre = want.mean(axis=0, keepdims=True)
    left, right = (want - centre).ravel(), (have - centre).ravel()
    norms = float(np.linalg.norm(left)), float(np.linalg.norm(right))
    if min(norms) == 0.0:
        return 1.0 if max(norms) == 0.0 else 0.0
    return float(np.clip((left / norms[0]) @ (right / norms[1]), -1.0, 1.0))


def agreement(want: np.ndarray, have: np.ndarray) -> float | None:
    """The share of rows whose highest score is at the same class; None if there are no classes."""
    if not is_scores(want):
        return None
    return float(np.mean(want.argmax(axis=1) == have.argmax(axis=1)))


def is_scores(array: np.ndarray) -> bool:
    """Whether an output can be read as one score for each of several classes.

    Rows of length 1 are an embedding, whose longest direction means nothing; unless they
    are shares of 1, as those of a very sure classifier.
    """
    if array.ndim != 2 or array.shape[1] < 2 or not np.issubdtype(array.dtype, np.floating):
        return False
    values = array.astype(np.float64)
    if (values >= 0).all() and np.allclose(values.sum(axis=1), 1.0, rtol=0.0, atol=_UNIT):
        return True
    return not np.allclose(np.linalg.norm(values, axis=1), 1.0, rtol=0.0, atol=_UNIT)


def finite(tensors: Tensors) -> bool:
    """Whether no floating point output has a NaN or an infinity."""
    floats = (array for array in tensors.values() if np.issubdtype(array.dtype, np.floating))
    return all(bool(np.isfinite(array).all()) for array in floats)


def _pair(name: str, want: np.ndarray, found: Tensors) -> tuple[np.ndarray, np.ndarray]:
    have = found.get(name)
    if have is None:
        raise ValueError(f"output {name!r} is missing")
    if have.shape != want.shape:
        raise ValueError(
            f"output {name!r} has shape {list(have.shape)}, expected {list(want.shape)}"
        )
    if not finite({name: have}):
        raise ValueError(f"output {name!r} has NaN or infinite values")
    return want.astype(np.float64), have.astype(np.float64)


def _max_abs_error(want: np.ndarray, have: np.ndarray) -> float:
    return float(np.abs(want - have).max(initial=0.0))


def _relative_l2(want: np.ndarray, have: np.ndarray) -> float:
    """Norm of the difference over the norm of `want`; the plain norm if `want` is zero."""
    norm = float(np.linalg.norm(want))
    return float(np.linalg.norm(want - have)) / (norm or 1.0)
