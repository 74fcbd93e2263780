"""Take a case through the chain and compare every answer with the source's."""

from __future__ import annotations

import re
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from pathlib import Path

import numpy as np

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.quiet import quiet
from mlctl.optimize.pipeline import optimize
from mlctl.optimize.recipes.fp32 import Fp32
from mlctl.registry.catalog import PublishedModel, PublishReport, SourceModel
from mlctl.registry.mlflow_catalog import MlflowCatalog
from mlctl.registry.tracking import configure_tracking
from tests.outside.case import Arrays, Case, Row, Source
from tests.outside.paths import Answer, Broken, Rejected, every_path

# What float32 arithmetic explains, relative to the row's largest answer or that of ordinary rows.
NEAR = 1e-5
# What no sentence for a user has: a path, a place in code, a Python object, another library's plea.
_NONSENSE = re.compile(
    r"(?:^|[\s'\"(])/(?:usr|root|home|tmp|var|work|dev|onnxruntime_src)/|\.(?:cc|cpp|py):\d"
    r"|Traceback|<class '|object at 0x|raise an iss?ue|Option '|not in \[|: '\w+'$|Error: "
)


class Verdict(StrEnum):
    """What became of a model."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict on a case; `reason` is the sentence that rejects it, or what is wrong."""

    verdict: Verdict
    reason: str = ""


class _Unpublished(MlflowCatalog):
    """Resolves models as always, and registers none: that is the same for every model."""

    def publish(
        self,
        bundle: VerifiedBundle,
        source: SourceModel,
        report: PublishReport,  # noqa: ARG002
    ) -> PublishedModel:
        return PublishedModel("zoo", "1", bundle.digest, "", "", source.uri, source.version)


class _FastClock:
    """A clock in which each reading is a second later: latencies are measured a few times only."""

    def __init__(self) -> None:
        self._seconds = count(1.0)

    def monotonic(self) -> float:
        return next(self._seconds)

    thread = wall = monotonic


def judge(case: Case) -> Outcome:
    """Train, log and optimize the model; ask for its answers; compare."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            configure_tracking()
            source = case.make()
            with quiet():
                source.log(case.registered_name)
        except Exception:  # noqa: BLE001 - the case is at fault
            return Outcome(Verdict.FAILED, f"it cannot be logged: {traceback.format_exc()[-400:]}")
        try:
            with tempfile.TemporaryDirectory(prefix="mlctl-zoo-") as folder:
                result = optimize(
                    case.registered_name,
                    source.write(Path(folder)),
                    catalog=_Unpublished(),
                    recipes=[Fp32()],
                    clock=_FastClock(),
                )
            rows = [*source.ordinary, *source.odd]
            answers = every_path(result.bundle, rows, len(source.ordinary))
            faults = list(compare(source, answers))
        except MlctlError as error:
            return rejection(case, error)
        except Exception:  # noqa: BLE001 - it is what the zoo looks for
            return Outcome(Verdict.FAILED, traceback.format_exc()[-1500:])
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        return Outcome(Verdict.FAILED, f"{faults[0]}{more}")
    return Outcome(Verdict.ACCEPTED)


def rejection(case: Case, error: MlctlError) -> Outcome:
    """Return the rejection, or what is missing in its sentence."""
    text = " ".join(error.message.split()).replace(f"models:/{case.registered_name}/1", "the model")
    text = text.replace(case.registered_name, "the model")
    if error.code is ErrorCode.INTERNAL:
        return Outcome(Verdict.FAILED, f"INTERNAL: {text}")
    if not any(kind in f"{error.message} {error.hint}" for kind in case.kinds):
        return Outcome(Verdict.FAILED, f"no word of {' or '.join(case.kinds)}: {text}")
    if not error.hint:
        return Outcome(Verdict.FAILED, f"no way out: {text}")
    if _NONSENSE.search(text):
        return Outcome(Verdict.FAILED, f"no sentence for a user: {text}")
    return Outcome(Verdict.REJECTED, text)


def compare(source: Source, answers: Mapping[str, Sequence[Answer]]) -> Iterator[str]:
    """Yield what is wrong with the answers of each path to the ordinary rows and the odd ones."""
    ordinary, rows = source.answer(source.ordinary), [*source.ordinary, *source.odd]
    wanted = [*_rows(ordinary), *_answered(source, source.odd)]
    scale = {name: _largest(array) for name, array in ordinary.items()}
    for number, (row, want) in enumerate(zip(rows, wanted, strict=True)):
        if want is not None and _overflows(row, want):
            wanted[number] = {}
    for path, found in answers.items():
        for number, (row, want, have) in enumerate(zip(rows, wanted, found, strict=True)):
            usual = number < len(source.ordinary)
            if fault := judge_answer(want, have, scale, usual=usual):
                yield f"{path}, {_shown(row, source.odd, source.ordinary)}: {fault}"


def judge_answer(
    want: Arrays | None, have: Answer, scale: Mapping[str, float], *, usual: bool
) -> str | None:
    """Return what is wrong with the answer to a row, None if nothing is.

    `want` is None where the source raises, and empty where there is nothing to compare. A `usual`
    row needs an answer; others may be rejected.
    """
    if isinstance(have, Broken):
        return have.reason
    if have is None or want == {}:
        return None
    if isinstance(have, Rejected):
        return f"rejected: {have.reason}" if usual else None
    if want is None:
        return f"the source raises, and the answer is {_short(have)}"
    # An output is renamed where a column has its name.
    have = {name.removeprefix("model_"): array for name, array in have.items()}
    if want.keys() != have.keys():
        return f"outputs {sorted(have)}, want {sorted(want)}"
    tie = _is_tie(want)
    for name, array in want.items():
        if not (_equal(array, have[name], scale[name]) or (tie and name == "label")):
            return f"{name} is {_short(have[name])}, want {_short(array)}"
    return None


def _overflows(row: Row, want: Arrays) -> bool:
    """Return whether the source itself gives no number for a row of numbers."""
    numbers = [value for value in row.values() if not isinstance(value, str)]
    whole = all(value is not None and bool(np.isfinite(value).all()) for value in numbers)
    return whole and not all(
        bool(np.isfinite(array).all())
        for array in want.values()
        if np.asarray(array).dtype.kind == "f"
    )


def _equal(want: np.ndarray, have: np.ndarray, scale: float) -> bool:
    if np.shape(want) != np.shape(have):
        return False
    if np.asarray(want).dtype.kind != "f":
        return bool(np.array_equal(want, have))
    scale = max(scale, _largest(np.asarray(want)[np.isfinite(want)]))
    return bool(np.allclose(have, want, rtol=NEAR, atol=NEAR * scale, equal_nan=True))


def _is_tie(want: Arrays) -> bool:
    """Return whether rounding decides between the two most probable classes."""
    found = want.get("probabilities")
    if found is None or np.ndim(found) != 1:
        return False
    second, first = np.sort(found)[-2:]
    return bool(first - second < NEAR)


def _answered(source: Source, rows: Sequence[Row]) -> list[Arrays | None]:
    """Return the source's answer to each row, None where it raises.

    Rows are asked together, and by halves where one of them makes the source raise.
    """
    if not rows:
        return []
    try:
        return [*_rows(source.answer(rows))]
    except Exception:  # noqa: BLE001 - libraries raise anything
        if len(rows) == 1:
            return [None]
    half = len(rows) // 2
    return [*_answered(source, rows[:half]), *_answered(source, rows[half:])]


def _rows(outputs: Arrays) -> list[Arrays]:
    rows = len(next(iter(outputs.values())))
    return [{name: array[row] for name, array in outputs.items()} for row in range(rows)]


def _largest(array: np.ndarray) -> float:
    return float(np.abs(array).max(initial=0.0)) if array.dtype.kind == "f" else 0.0


def _shown(row: Row, odd: Sequence[Row], ordinary: Sequence[Row]) -> str:
    """Return a row as what makes it odd."""
    base = ordinary[0] if any(row is each for each in odd) else {}
    parts = [
        f"{name}={_short(value)}" for name, value in row.items() if not _same(base, name, value)
    ]
    return ", ".join(parts)[:300]


def _same(base: Row, name: str, value: object) -> bool:
    return name in base and bool(np.array_equal(np.asarray(base[name]), np.asarray(value)))


def _short(value: object) -> str:
    return re.sub(r"\s+", " ", str(value))[:120]
