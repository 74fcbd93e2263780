"""What metrics need of labels."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import numpy as np

from bundle.errors import ErrorCode, MlctlError
from optimize.data.rows import Rows


class LabelKind(StrEnum):
    """What a metric takes as labels."""

    CLASSES = "class numbers"
    QUANTITIES = "quantities"
    ANY = "any labels"


class NeedsLabels(Protocol):
    """A metric, as far as its labels go."""

    @property
    def name(self) -> str: ...

    @property
    def labels(self) -> LabelKind: ...


def require_labels(rows: Rows, metric: NeedsLabels) -> np.ndarray:
    """The labels of `rows`; INVALID_INPUT if `metric` cannot judge by them."""
    labels = rows.labels
    if labels is None:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"metric {metric.name} needs labels, the data has none",
            "Add an array `labels`, or leave --metric out: variants are then judged by parity.",
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
