"""Checks before a model takes traffic: its golden answers, and how long batches of each size take.

The time is measured here and not in the bundle: it depends on the machine, and a digest must not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from statistics import median_low

import numpy as np
import psutil

from mlctl.bundle.manifest import GOLDEN_NAME, Evidence
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.model.golden import load_golden, load_golden_features
from mlctl.services.model.padding import LengthPadding
from mlctl.services.model.run_errors import is_caused_by_inputs
from mlctl.services.model.scorer import Scorer, join_rows, split_rows

# The evidence was measured on more rows than the golden ones, so its largest error bounds theirs.
# The slack is for kernels of other processors, which add in another order.
_SLACK = 1.5
_FLOAT_NOISE = 1e-4
_GOLDEN = "of the golden rows"
# Rounds per batch size: the fewest where they take longer than these seconds.
_MIN_ROUNDS, _MAX_ROUNDS = 2, 7
_ROUNDS_SECONDS = 0.2
# A better size does at least so many times the rows per second: less may be chance.
_GAIN = 1.05
# A batch larger than the bundle's may take so many seconds, because a request that comes during it
# waits for its end. It is tried only if the smaller ones took no more than these bytes.
_MAX_BATCH_SECONDS = 0.02
_MAX_BATCH_BYTES = 128 << 20
logger = logging.getLogger("mlctl.warmup")


def check_golden(scorer: Scorer, bundle: VerifiedBundle) -> Mapping[str, np.ndarray]:
    """Run the golden rows and return their inputs, with the features of a transform that has some.

    PARITY_FAILED unless every output differs from the recorded one by at most 1.5 times the
    evidence's `max_abs_error`, plus 1e-4 of the output's largest magnitude.
    """
    inputs, recorded = load_golden(bundle.path(GOLDEN_NAME))
    rows = scorer.check(inputs)
    inputs |= load_golden_features(bundle.path(GOLDEN_NAME))
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


def warm_up(
    scorer: Scorer, inputs: Mapping[str, np.ndarray], clock: Callable[[], float], max_rows: int
) -> dict[int, float]:
    """Run every batch size with rows of `inputs`; return the median seconds of a run by rows.

    The sizes are the bundle's. If it allows larger ones, they are doubled up to `max_rows` as long
    as that raises the rows per second by 5 %, keeps the answers of the golden rows, and takes
    little time and memory; `scorer.max_rows` becomes the largest. `clock` returns seconds.
    """
    if not scorer.batched:
        return _time_runs(scorer, {1: inputs}, clock)
    memory = _resident_bytes()
    sizes = [*scorer.manifest.batching.buckets]
    seconds = _time_runs(scorer, {rows: _resize(inputs, rows) for rows in sizes}, clock)
    if not scorer.measures_larger:
        return seconds
    answers = scorer.run(_resize(inputs, sizes[-1]))
    while best_rows(seconds) == sizes[-1] and sizes[-1] * 2 <= max_rows:
        rows = sizes[-1]
        if seconds[rows] > _MAX_BATCH_SECONDS or _resident_bytes() - memory > _MAX_BATCH_BYTES:
            break
        larger = _resize(inputs, 2 * rows)
        scorer.max_rows = 2 * rows
        try:
            _check_larger(scorer, answers, scorer.run(larger))
            # The smaller size again, because the machine may have become faster or slower.
            both = _time_runs(scorer, {rows: _resize(inputs, rows), 2 * rows: larger}, clock)
        except MlctlError as error:
            logger.warning("no batches of %d rows: %s", 2 * rows, error.message)
            break
        took = both[2 * rows] * seconds[rows] / both[rows]
        if took > _MAX_BATCH_SECONDS or 2 * both[rows] < _GAIN * both[2 * rows]:
            break
        sizes.append(2 * rows)
        seconds[2 * rows] = took
    scorer.max_rows = sizes[-1]
    return seconds


def best_rows(seconds: Mapping[int, float]) -> int:
    """Return the batch size with the most rows per second.

    Where activations outgrow the processor's cache, several small batches beat one large one. A
    smaller size is chosen only if it is better by 5 %.
    """
    best = max(seconds)
    for rows in sorted(seconds, reverse=True):
        if rows * seconds[best] > _GAIN * best * seconds[rows]:
            best = rows
    return best


def _time_runs(
    scorer: Scorer, batches: Mapping[int, Mapping[str, np.ndarray]], clock: Callable[[], float]
) -> dict[int, float]:
    """Return the median seconds of a run of each batch.

    Each round runs every batch once, so that a machine that becomes slower, by its load or its
    temperature, does so for all sizes alike. The first run of a size is not timed.
    """
    for batch in batches.values():
        scorer.run(batch)
    times: dict[int, list[float]] = {rows: [] for rows in batches}
    start = clock()
    for number in range(_MAX_ROUNDS):
        if number >= _MIN_ROUNDS and clock() - start >= _ROUNDS_SECONDS:
            break
        for rows, batch in batches.items():
            begin = clock()
            scorer.run(batch)
            times[rows].append(clock() - begin)
    return {rows: median_low(runs) for rows, runs in times.items()}


def _check_larger(
    scorer: Scorer, smaller: Mapping[str, np.ndarray], larger: Mapping[str, np.ndarray]
) -> None:
    """Raise PARITY_FAILED if the first rows of a larger batch have other answers."""
    for spec in scorer.signature.outputs:
        answers = larger[spec.name][: len(smaller[spec.name])]
        _compare(spec.name, smaller[spec.name], answers, scorer.manifest.evidence)


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


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
