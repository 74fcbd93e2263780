"""What a variant must meet: limits, and the gates on accuracy. Pure.

With labels the gate is the drop of the task metric; without, it is centred cosine and,
where the output is a row of scores, agreement of the top class. Plain cosine is never
a gate: see `optimize.metrics.parity`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum

from bundle.errors import ErrorCode, MlctlError
from optimize.data import Tensors
from optimize.metrics.parity import Parity, is_scores

MAX_ACCURACY_DROP = 0.01
MIN_AGREEMENT = 0.99
MIN_CENTRED_COSINE = 0.98


class Prefer(StrEnum):
    """What to choose by, among the variants that pass."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"
    SIZE = "size"


@dataclass(frozen=True, slots=True)
class Goals:
    """The limits of a variant; `max_accuracy_drop` is in the units of the metric.

    With labels it is MAX_ACCURACY_DROP unless given. Without labels, agreement and centred
    cosine have to reach MIN_AGREEMENT and MIN_CENTRED_COSINE; given here they hold with
    labels too.
    """

    max_accuracy_drop: float | None = None
    max_p95_ms: float | None = None
    max_size_mb: float | None = None
    min_agreement: float | None = None
    min_centred_cosine: float | None = None
    prefer: Prefer = Prefer.LATENCY

    def __post_init__(self) -> None:
        """INVALID_INPUT for a limit that is negative or no finite number, or a share over 1."""
        for field in fields(self):
            value = getattr(self, field.name)
            top = 1.0 if field.name.startswith("min_") else math.nextafter(math.inf, 0)
            if isinstance(value, int | float) and not 0 <= value <= top:
                raise MlctlError(
                    ErrorCode.INVALID_INPUT,
                    f"{field.name} = {value!r} is out of range: give a number from 0"
                    + (" to 1" if top == 1.0 else ", finite"),
                )

    @property
    def accuracy_drop(self) -> float:
        """The largest drop of the metric that passes."""
        given = self.max_accuracy_drop
        return MAX_ACCURACY_DROP if given is None else given

    def words(self, metric: str | None) -> str:
        """The gates and the preference for a person; `metric` is None without labels."""
        agreement, cosine = self.min_agreement, self.min_centred_cosine
        gates = []
        if metric is not None:
            gates.append(f"{metric} may drop by at most {self.accuracy_drop:g}")
        else:
            agreement = MIN_AGREEMENT if agreement is None else agreement
            cosine = MIN_CENTRED_COSINE if cosine is None else cosine
        if agreement is not None:
            gates.append(f"agreement at least {agreement:g}")
        if cosine is not None:
            gates.append(f"centred cosine at least {cosine:g}")
        if self.max_p95_ms is not None:
            gates.append(f"p95 at most {self.max_p95_ms:g} ms")
        if self.max_size_mb is not None:
            gates.append(f"size at most {self.max_size_mb:g} MB")
        return f"{'; '.join(gates)}; then the best by {self.prefer.value}"

    def accuracy_only(self) -> dict[str, float | None]:
        """The limits that a search for accuracy depends on."""
        return {
            "max_accuracy_drop": self.accuracy_drop,
            "min_agreement": self.min_agreement,
            "min_centred_cosine": self.min_centred_cosine,
        }


def require_labels_for(goals: Goals, *, labelled: bool) -> None:
    """Reject a limit on the accuracy drop if no labels can decide it; INVALID_INPUT."""
    if goals.max_accuracy_drop is not None and not labelled:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"an accuracy drop of at most {goals.max_accuracy_drop:g} cannot be judged: the rows "
            "have no labels",
            "Add an array `labels` to the data, or limit the difference from the source model "
            "with --min-agreement or --min-cosine instead.",
        )


def require_scores(goals: Goals, outputs: Tensors) -> None:
    """INVALID_INPUT if a limit on agreement is given for `outputs` that have no classes.

    Otherwise the limit would be passed over in silence.
    """
    name, first = next(iter(outputs.items()))
    if goals.min_agreement is not None and not is_scores(first):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"agreement has no meaning for output {name!r}: it does not hold one score for each "
            "class",
            "Leave the limit on agreement out; a limit on the centred cosine fits such outputs.",
        )


def accuracy_faults(
    parity: Parity, drop: float | None, goals: Goals, share: float = 1.0
) -> Iterator[str]:
    """The gates on accuracy that are missed, with value and limit.

    `drop` is how much the metric fell, None without labels. Only `share` of what the
    goals allow may be used up.
    """
    if drop is not None and drop > goals.accuracy_drop * share:
        yield over("accuracy drop", drop, goals.accuracy_drop * share)
    cosine = _minimum(goals.min_centred_cosine, MIN_CENTRED_COSINE, drop, share)
    if cosine is not None and parity.centred_cosine < cosine:
        yield under("centred cosine", parity.centred_cosine, cosine)
    agreement = _minimum(goals.min_agreement, MIN_AGREEMENT, drop, share)
    if agreement is not None and parity.agreement is not None and parity.agreement < agreement:
        yield under("agreement", parity.agreement, agreement)


def over(what: str, value: float, limit: float) -> str:
    """The sentence for a value above its limit."""
    return f"{what} {value:.4g} is over the limit {limit:.4g}"


def under(what: str, value: float, limit: float) -> str:
    """The sentence for a value below its limit."""
    return f"{what} {value:.4g} is under the limit {limit:.4g}"


def _minimum(given: float | None, usual: float, drop: float | None, share: float) -> float | None:
    """The lower limit that holds; None if labels decide and none was given."""
    if given is None:
        if drop is not None:
            return None
        given = usual
    return 1.0 - (1.0 - given) * share
