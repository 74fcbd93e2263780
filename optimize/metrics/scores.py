"""Task metrics on labelled rows, and how much worse one model is than another by them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import sha256_file
from mlctl.core.text import suggestion
from mlctl.optimize.data import SEED, Rows, Tensors
from mlctl.optimize.data.user_functions import is_function_name, load_function, user_code
from mlctl.optimize.metrics import classes, quantities
from mlctl.optimize.metrics.bootstrap import (
    Estimate,
    Statistic,
    bootstrap,
    canonical_order,
)

RESAMPLES = 1000
LEVEL = 0.95

# A user's function may be slow; this is still enough for the ends of a 95 % interval.
CUSTOM_RESAMPLES = 200

# Metrics where lower is better.
_ERRORS = frozenset({"log_loss", "mae", "rmse"})


class LabelKind(StrEnum):
    """The labels that a metric takes."""

    CLASSES = "class numbers"
    QUANTITIES = "quantities"
    ANY = "any labels"


@dataclass(frozen=True, slots=True)
class Metric:
    """A number computed from outputs and labels.

    `statistic(outputs, labels, reference)` binds rows and gives the metric by weights;
    the reference outputs decide how scores are to be read. `margin_used(reference,
    outputs)` is the part of the decision margin that the change of the outputs used up,
    from 0 to 1, or None if the metric has no decisions. `code` is the hex sha256 of
    the file that a user's function is in. `judges_all` says that the metric gets all outputs; the
    others judge the first one. `against_source` says that the source model's answers take the
    place of labels.
    """

    name: str
    higher_is_better: bool
    labels: LabelKind
    statistic: Callable[[Tensors, np.ndarray, Tensors], Statistic]
    margin_used: Callable[[Tensors, Tensors], float] | None = None
    max_resamples: int | None = None
    code: str | None = None
    judges_all: bool = False
    against_source: bool = False

    def labels_of(self, rows: Rows) -> np.ndarray | None:
        """Return what `statistic` takes as labels of `rows`; None if it needs some and has none."""
        return np.zeros(rows.count, np.int64) if self.against_source else rows.labels

    def score(self, outputs: Tensors, labels: np.ndarray) -> float:
        """Return the metric of all rows; INVALID_INPUT if it does not apply to such outputs."""
        return self.statistic(outputs, labels, outputs)(np.ones(len(labels)))


@dataclass(frozen=True, slots=True)
class MetricResult:
    """The metric of the `reference` model and of another; `drop` > 0 means the other is worse.

    `outputs` are the names of the outputs that the metric judges.
    """

    reference: float
    value: float
    drop: Estimate
    outputs: tuple[str, ...] = ()
    higher_is_better: bool = True


def load_metric(text: str, *, labelled: bool = True) -> Metric:
    """Load the metric that `text` names: one of METRICS, or `module:function`.

    A function takes the outputs by name and the labels and returns a number, higher is
    better unless it has an attribute `higher_is_better = False`. Where the rows are not
    `labelled` it takes the source model's outputs by name in place of the labels.
    """
    if text in METRICS:
        return METRICS[text]
    if is_function_name(text):
        return _custom(text, load_function(text), against_source=not labelled)
    near = suggestion(text, METRICS, "metrics")
    raise MlctlError(
        ErrorCode.INVALID_INPUT,
        f"no metric {text!r}; {near}",
        "Give one of these, or your own function as module:function.",
    )


def require_labels(rows: Rows, metric: Metric) -> np.ndarray:
    """Return the labels of `rows`; INVALID_INPUT if `metric` cannot judge by them."""
    labels = metric.labels_of(rows)
    if labels is None:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"metric {metric.name} needs labels, the data has none",
            "Add an array `labels`, leave --metric out, so that variants are judged by parity, or "
            "give your own function as module:function: it gets the source model's answers.",
        )
    if metric.labels is not LabelKind.CLASSES:
        return labels
    if not np.issubdtype(labels.dtype, np.integer):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"metric {metric.name} needs class numbers as labels, the data has {labels.dtype}",
            "Save the labels as integers, or give --metric rmse for quantities.",
        )
    if len(labels) and (labels == labels[0]).all():
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"all {len(labels)} rows have the label {labels[0]}: a model that always gives "
            f"this answer would pass, so {metric.name} proves nothing",
            "Give rows of every class, or leave the labels out: parity is then the gate.",
        )
    return labels


def compare_metric(
    metric: Metric,
    reference: Tensors,
    outputs: Tensors,
    labels: np.ndarray,
    *,
    seed: int = SEED,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> MetricResult:
    """Return the drop from `reference` to `outputs` with its paired bootstrap interval.

    The bootstrap cannot draw an event that no row shows, so it may also draw an unseen row that
    moves a metric of shares by a whole row (macro F1 on average). That row is scaled by
    `margin_used`: decision margins have a finite density at 0, so the share of rows within
    a distance of a decision's border grows in proportion to that distance. It is 0 for
    equal outputs and 1 once one decision changed.
    """
    order = canonical_order(labels, (reference.values(), outputs.values()))
    labels = labels[order]
    reference = {name: array[order] for name, array in reference.items()}
    outputs = {name: array[order] for name, array in outputs.items()}
    before = metric.statistic(reference, labels, reference)
    after = metric.statistic(outputs, labels, reference)
    sign = 1.0 if metric.higher_is_better else -1.0

    def drop(weights: np.ndarray) -> float:
        # Rounded, so that a drop of exactly the limit is not over it by a rounding error.
        return round(sign * (before(weights) - after(weights)), 12)

    whole = np.ones(len(labels))
    values = before(whole), after(whole)
    judged = tuple(reference) if metric.judges_all else (next(iter(reference)),)
    if _equal(reference, outputs):
        return MetricResult(
            *values, Estimate(0.0, 0.0, 0.0, level), judged, metric.higher_is_better
        )
    count = min(resamples, metric.max_resamples or resamples)
    unseen = None if metric.margin_used is None else metric.margin_used(reference, outputs)
    found = bootstrap(drop, len(labels), resamples=count, level=level, seed=seed, unseen=unseen)
    return MetricResult(*values, found, judged, metric.higher_is_better)


def _equal(reference: Tensors, outputs: Tensors) -> bool:
    return all(np.array_equal(array, outputs[name]) for name, array in reference.items())


def _no_decisions(reference: Tensors, outputs: Tensors) -> float:
    """Return 0: each row counts by all its values or pairs, not by one decision that may flip."""
    del reference, outputs
    return 0.0


def _custom(text: str, function: Callable[..., Any], *, against_source: bool) -> Metric:
    """Return a metric that calls the user's function on the resampled rows."""

    def statistic(outputs: Tensors, labels: np.ndarray, reference: Tensors) -> Statistic:
        def weighted(weights: np.ndarray) -> float:
            index = np.repeat(np.arange(len(labels)), weights.astype(np.int64))
            taken = {name: array[index] for name, array in outputs.items()}
            resampled = "" if (weights == 1).all() else " on resampled rows (some more than once)"
            wanted: Any = labels[index]
            if against_source:
                wanted = {name: array[index] for name, array in reference.items()}
            with user_code(f"metric {text!r}{resampled}"):
                return _number(text, function(taken, wanted), resampled)

        return weighted

    return Metric(
        name=text,
        higher_is_better=bool(getattr(function, "higher_is_better", True)),
        labels=LabelKind.ANY,
        statistic=statistic,
        max_resamples=CUSTOM_RESAMPLES,
        code=_code(function),
        judges_all=True,
        against_source=against_source,
    )


def _code(function: Callable[..., Any]) -> str | None:
    """Return the sha256 of the function's source file; None if it has none."""
    try:
        path = inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:
        return None
    return None if path is None else sha256_file(Path(path).resolve())


def _number(text: str, found: Any, resampled: str) -> float:
    """Return the number of a user's function; numpy scalars and 0-d arrays count too."""
    value = found.item() if getattr(found, "shape", None) == () else found
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    shown = repr(value) if isinstance(value, Real) else f"a value of type {type(value).__name__}"
    raise MlctlError(
        ErrorCode.INVALID_INPUT,
        f"metric {text!r} returned {shown}{resampled}, expected a finite number",
        "The function takes the outputs by name and the labels, and returns one number.",
    )


def _metrics() -> Iterator[Metric]:
    of_classes = {
        "accuracy": (classes.accuracy, classes.top1_margin_used),
        "top5": (classes.top5, classes.top5_margin_used),
        "f1": (classes.f1, classes.top1_margin_used),
        "auc": (classes.auc, _no_decisions),
        "log_loss": (classes.log_loss, _no_decisions),
    }
    for name, (statistic, margin_used) in of_classes.items():
        yield Metric(name, name not in _ERRORS, LabelKind.CLASSES, statistic, margin_used)
    of_numbers = {
        "rmse": quantities.rmse,
        "mae": quantities.mae,
        "r2": quantities.r2,
        "ndcg": quantities.ndcg,
        "map": quantities.average_precision,
    }
    for name, statistic in of_numbers.items():
        yield Metric(name, name not in _ERRORS, LabelKind.QUANTITIES, statistic, _no_decisions)


METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _metrics()})
