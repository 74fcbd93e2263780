"""Checks before a model takes traffic: its golden answers, and one run of every batch size."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_low

import numpy as np

from bundle.clock import Clock
from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import GOLDEN_NAME, Evidence
from bundle.verify import VerifiedBundle
from services.runtime.golden import load_golden
from services.runtime.padding import LengthPadding
from services.runtime.run_errors import is_caused_by_inputs
from services.runtime.scorer import Scorer, join_rows, split_rows

# The evidence was measured on more rows than the golden ones, so its largest error bounds theirs.
# The slack is for kernels of other processors, which add in another order.
_SLACK = 1.5
_FLOAT_NOISE = 1e-4
_GOLDEN = "of the golden rows"
# A batch size is timed at least twice, and up to this often within this many seconds.
_TIMED_RUNS = 5
_TIMED_SECONDS = 0.05


def check_golden(scorer: Scorer, bundle: VerifiedBundle) -> Mapping[str, np.ndarray]:
    """Run the golden rows and return their inputs.

    PARITY_FAILED unless every output differs from the recorded one by at most 1.5 times the
    evidence's `max_abs_error`, plus 1e-4 of the output's largest magnitude.
    """
    inputs, recorded = load_golden(bundle.path(GOLDEN_NAME))
    rows = scorer.check(inputs)
    size = scorer.max_rows if scorer.batched else rows
    parts = split_rows(inputs, size) if scorer.batched else [inputs]
    answers = join_rows([scorer.run(part) for part in parts])
    for spec in scorer.signature.outputs:
        if spec.name not in recorded:
            raise _failed(spec.name, "the golden rows do not have it")
        _compare(spec.name, recorded[spec.name], answers[spec.name], bundle.manifest.evidence)
    return inputs


def check_padding(scorer: Scorer, lengths: LengthPadding, inputs: Mapping[str, np.ndarray]) -> None:
    """Check that half of a golden row's sequence gets the same answer when padded to full length.

    PARITY_FAILED otherwise, with the tolerance of the golden rows, and if the model fails.
    """
    row = {name: array[:1] for name, array in inputs.items()}
    whole = lengths.length(row)
    if whole is None or whole < 2:
        return
    half = whole // 2
    short = {
        name: array[:, :half] if name in lengths.names else array for name, array in row.items()
    }
    try:
        alone = scorer.run(short)
        padded = lengths.trim(scorer.run(lengths.pad_to(short, whole)), whole, half)
    except MlctlError as error:
        if not is_caused_by_inputs(error):
            raise
        raise MlctlError(
            ErrorCode.PARITY_FAILED,
            f"{error.message}: half of a golden row, in {', '.join(sorted(lengths.names))}",
            "`pad` in the manifest's batching must name all inputs of that length.",
        ) from error
    for name, want in alone.items():
        _compare(name, want, padded[name], scorer.manifest.evidence, "padded, of the golden rows")


def warm_up(scorer: Scorer, inputs: Mapping[str, np.ndarray], clock: Clock) -> dict[int, float]:
    """Run every batch size with rows of `inputs`; return the seconds of a run by rows.

    The first run of a size is not timed. Quick runs are repeated for the median, so that one stall
    of the machine does not decide the estimate.
    """
    seconds = {}
    for rows in scorer.manifest.batching.buckets if scorer.batched else (1,):
        batch = _resize(inputs, rows) if scorer.batched else inputs
        scorer.run(batch)
        runs = [_timed(scorer, batch, clock) for _ in range(2)]
        while sum(runs) < _TIMED_SECONDS and len(runs) < _TIMED_RUNS:
            runs.append(_timed(scorer, batch, clock))
        seconds[rows] = median_low(runs)
    return seconds


def _timed(scorer: Scorer, batch: Mapping[str, np.ndarray], clock: Clock) -> float:
    start = clock.monotonic()
    scorer.run(batch)
    return clock.monotonic() - start


def _resize(inputs: Mapping[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
    return {name: array[np.arange(rows) % array.shape[0]] for name, array in inputs.items()}


def _compare(
    name: str, want: np.ndarray, have: np.ndarray, evidence: Evidence, of: str = _GOLDEN
) -> None:
    if want.shape != have.shape:
        raise _failed(name, f"its shape is {list(have.shape)}, not {list(want.shape)}", of)
    if want.dtype.kind in "Ob":
        if not np.array_equal(want, have):
            raise _failed(name, "it differs", of)
        return
    wide_want, wide_have = want.astype(np.float64), have.astype(np.float64)
    limit = tolerance(want, evidence)
    error = float(np.abs(wide_have - wide_want).max(initial=0.0))
    if not error <= limit:  # also when it is NaN
        raise _failed(name, f"it differs by {error:.3g} (limit {limit:.3g})", of)


def tolerance(want: np.ndarray, evidence: Evidence) -> float:
    """Return the maximum absolute difference between an output and the recorded `want`."""
    noise = _FLOAT_NOISE * float(np.abs(want.astype(np.float64)).max(initial=0.0))
    return _SLACK * evidence.max_abs_error + noise


def _failed(name: str, reason: str, of: str = _GOLDEN) -> MlctlError:
    return MlctlError(ErrorCode.PARITY_FAILED, f"output {name!r} {of}: {reason}")
