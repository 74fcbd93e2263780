"""Goals of an optimization: limits on a variant, and the gates on its accuracy. Pure.

With labels the gate is the drop of the task metric. Outputs that no metric judges must
stay near the source model's: by centred cosine, relative L2 (a forecast that is scaled keeps its
cosine) and, where rows can agree, by agreement. Plain cosine is never a gate: see
`mlctl.optimize.metrics.parity`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from enum import StrEnum

from mlctl.bundle.output_kinds import OutputKind, output_kind
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.data import Tensors
from mlctl.optimize.metrics.parity import OutputParity, Parity
from mlctl.optimize.metrics.perplexity import PERPLEXITY_NAME
from mlctl.optimize.metrics.scores import Metric, MetricResult

# In units of the metric, for metrics where higher is better: accuracy and other shares.
MAX_ACCURACY_DROP = 0.01
# For errors such as RMSE: a share of the source model's own error.
MAX_ERROR_GROWTH = 0.01
# Of a language model, as a share of the source model's.
MAX_PERPLEXITY_INCREASE = 0.05
MIN_AGREEMENT = 0.99
MIN_CENTRED_COSINE = 0.98
# Of a variant that costs accuracy.
MIN_GAIN = 0.1


class Prefer(StrEnum):
    """What to choose by, among the variants that pass."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"
    SIZE = "size"


@dataclass(frozen=True, slots=True)
class Goals:
    """The limits of a variant, and what to choose by among those that keep them.

    Attributes:
        max_accuracy_drop: by how much the metric may get worse, in its units; None, with labels,
            0.01, or 1 % of the source model's error.
        max_p95_ms: p95 of the latency of one row; None for no limit.
        max_size_mb: size of the graph; None for no limit.
        min_agreement: share of the rows that get the source model's answer; None, for outputs that
            no metric judges, 0.99. A limit that is set holds for all outputs.
        min_centred_cosine: the same for the centred cosine with its outputs; None, 0.98.
        score_limit: the metric of a variant must be at least this, an error at most.
        max_perplexity_increase: of a language model, as a share of the source model's perplexity;
            None, 0.05.
        prefer: latency, throughput or size.
        min_gain: by how much faster a variant that costs accuracy must be, as a share: 0.1 is 10 %.
    """

    max_accuracy_drop: float | None = None
    max_p95_ms: float | None = None
    max_size_mb: float | None = None
    min_agreement: float | None = None
    min_centred_cosine: float | None = None
    score_limit: float | None = None
    max_perplexity_increase: float | None = None
    prefer: Prefer = Prefer.LATENCY
    min_gain: float = MIN_GAIN

    def __post_init__(self) -> None:
        """Reject a limit that is negative or not finite, or a share over 1; INVALID_INPUT."""
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
    def drop_name(self) -> str:
        """What `accuracy_drop` limits."""
        return "accuracy drop" if self.max_perplexity_increase is None else "perplexity increase"

    @property
    def accuracy_drop(self) -> float:
        """The largest drop of the metric that passes."""
        limit = self.max_accuracy_drop
        return MAX_ACCURACY_DROP if limit is None else limit

    def resolved(self, metric: Metric | None, source_score: float | None) -> Goals:
        """Return the goals with the default drop of an error metric in that metric's units."""
        if self.max_accuracy_drop is not None or metric is None or not source_score:
            return self
        if metric.higher_is_better:
            return self
        growth = self.error_growth(metric)
        found = replace(self, max_accuracy_drop=growth * abs(source_score))
        if metric.name == PERPLEXITY_NAME:
            found = replace(found, max_perplexity_increase=growth)
        return found

    def error_growth(self, metric: Metric) -> float:
        """Return the largest increase of an error metric, as a share of the source model's."""
        if metric.name != PERPLEXITY_NAME:
            return MAX_ERROR_GROWTH
        limit = self.max_perplexity_increase
        return MAX_PERPLEXITY_INCREASE if limit is None else limit

    def words(self, metric: Metric | None) -> str:
        """Return the gates and the preference in words; `metric` is None without labels."""
        agreement, cosine = self.min_agreement, self.min_centred_cosine
        gates = []
        if metric is None:
            agreement = MIN_AGREEMENT if agreement is None else agreement
            cosine = MIN_CENTRED_COSINE if cosine is None else cosine
        elif metric.higher_is_better:
            gates.append(f"{metric.name} may drop by at most {self.accuracy_drop:g}")
        elif self.max_accuracy_drop is None:
            growth = f"{100 * self.error_growth(metric):g}%"
            gates.append(f"{metric.name} may rise by at most {growth} of the source's")
        else:
            gates.append(f"{metric.name} may rise by at most {self.accuracy_drop:.4g}")
        if self.score_limit is not None and metric is not None:
            bound = "least" if metric.higher_is_better else "most"
            gates.append(f"{metric.name} at {bound} {self.score_limit:.4g}")
        if agreement is not None:
            gates.append(f"agreement at least {agreement:g}")
        if cosine is not None:
            gates.append(f"centred cosine at least {cosine:g}")
            gates.append(f"relative L2 at most {max_relative_l2(cosine):.4g}")
        if self.max_p95_ms is not None:
            gates.append(f"p95 at most {self.max_p95_ms:g} ms")
        if self.max_size_mb is not None:
            gates.append(f"size at most {self.max_size_mb:g} MB")
        best = f"then the best by {self.prefer.value}"
        if self.prefer is not Prefer.SIZE:
            best += f", lossy ones if at least {self.min_gain:.0%} faster"
        return f"{'; '.join(gates)}; {best}"

    def accuracy_only(self) -> dict[str, float | None]:
        """Return the limits that a search for accuracy depends on."""
        return {
            "max_accuracy_drop": self.accuracy_drop,
            "score_limit": self.score_limit,
            "min_agreement": self.min_agreement,
            "min_centred_cosine": self.min_centred_cosine,
        }


def max_relative_l2(cosine: float) -> float:
    """Return the relative L2 of answers with this cosine whose scale is right.

    A scaled or shifted answer is farther off than its cosine says.
    """
    return math.sqrt(2.0 * (1.0 - cosine))


def require_labels_for(goals: Goals, *, labelled: bool, champion: bool = False) -> None:
    """Reject a limit on the metric if no labels can decide it; INVALID_INPUT.

    `champion` says that the @champion's score is one.
    """
    problem = ""
    if goals.max_accuracy_drop is not None:
        problem = f"an accuracy drop of at most {goals.max_accuracy_drop:g}"
    elif goals.score_limit is not None or champion:
        problem = "--min-accuracy"
    if problem and not labelled:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{problem} cannot be judged: the rows have no labels",
            "Add an array `labels` to the data, or limit the difference from the source model "
            "with --min-agreement or --min-cosine instead.",
        )


def require_fitting_limit(goals: Goals, metric: Metric | None) -> None:
    """Reject an accuracy limit of a language model, or one on perplexity of another model.

    Neither could be judged; INVALID_INPUT.
    """
    generates = metric is not None and metric.name == PERPLEXITY_NAME
    if generates and goals.max_accuracy_drop is not None:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            "a language model has no accuracy to limit",
            "Limit its perplexity with --max-perplexity-increase.",
        )
    if not generates and goals.max_perplexity_increase is not None:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            "only a language model has a perplexity to limit",
            "Leave --max-perplexity-increase out.",
        )


def require_agreement(goals: Goals, outputs: Tensors) -> None:
    """Reject a limit on agreement if all `outputs` are numbers, which cannot agree; INVALID_INPUT.

    Otherwise the limit would have no effect.
    """
    kinds = (output_kind(name, array) for name, array in outputs.items())
    if goals.min_agreement is None or any(kind is not OutputKind.NUMBERS for kind in kinds):
        return
    listed = ", ".join(repr(name) for name in outputs)
    raise MlctlError(
        ErrorCode.INVALID_INPUT,
        f"a limit on agreement has no effect: {listed} holds neither class scores nor labels",
        "Leave --min-agreement out and limit the centred cosine with --min-cosine.",
    )


def accuracy_faults(
    parity: Parity, score: MetricResult | None, goals: Goals, share: float = 1.0
) -> Iterator[str]:
    """Yield the gates on accuracy that are missed, with value and limit.

    `score` is the metric's result, None without labels; the gate looks at the upper bound of
    its drop, because few rows prove little. `share` is the part of what the goals allow that
    may be used.
    """
    limit = goals.accuracy_drop * share
    if score is not None and score.drop.high > limit:
        yield over(goals.drop_name, score.drop.high, limit)
    if score is not None and goals.score_limit is not None:
        if score.higher_is_better and score.value < goals.score_limit:
            yield under("score", score.value, goals.score_limit)
        if not score.higher_is_better and score.value > goals.score_limit:
            yield over("score", score.value, goals.score_limit)
    for name, output in parity.outputs.items():
        judged = score is not None and name in score.outputs
        label = f" of output {name!r}" if len(parity.outputs) > 1 else ""
        yield from _parity_faults(output, label, goals, share, defaults=not judged)


def _parity_faults(
    output: OutputParity, label: str, goals: Goals, share: float, *, defaults: bool
) -> Iterator[str]:
    """Yield the missed gates of one output; `defaults` says that limits not set have defaults.

    The centred cosine of an output that does not vary is noise, and no gate.
    """
    cosine = _limit(goals.min_centred_cosine, MIN_CENTRED_COSINE if defaults else None, share)
    if cosine is not None:
        if output.varies and output.centred_cosine < cosine:
            yield under(f"centred cosine{label}", output.centred_cosine, cosine)
        if output.relative_l2 > max_relative_l2(cosine):
            yield over(f"relative L2{label}", output.relative_l2, max_relative_l2(cosine))
    agreement = _limit(goals.min_agreement, MIN_AGREEMENT if defaults else None, share)
    if agreement is not None and output.agreement is not None and output.agreement < agreement:
        yield under(f"agreement{label}", output.agreement, agreement)


def over(quantity: str, value: float, limit: float) -> str:
    """Return the sentence for a value above its limit."""
    return f"{quantity} {value:.4g} is over the limit {limit:.4g}"


def under(quantity: str, value: float, limit: float) -> str:
    """Return the sentence for a value below its limit."""
    return f"{quantity} {value:.4g} is under the limit {limit:.4g}"


def _limit(value: float | None, default: float | None, share: float) -> float | None:
    """Return the lower limit, of whose distance to 1 only `share` may be used; None for none."""
    limit = default if value is None else value
    return None if limit is None else 1.0 - (1.0 - limit) * share
