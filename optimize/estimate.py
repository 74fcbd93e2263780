"""How long a step will take: from what such steps took here, else by a rule. Pure.

A rule is fixed seconds, plus seconds for each megabyte of the model, plus seconds for
each row and megabyte, because the time to run a network grows with its weights. Where
only other models were seen, the rule is corrected by how far it was off for them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Basis(StrEnum):
    """What an estimate rests on, the best first."""

    THIS_MODEL = "this model, earlier"
    OTHER_MODELS = "other models here"
    RULE = "rule of thumb"


class Kind(StrEnum):
    """The kinds of steps, as the keys of the cache call them; PUBLISH is not cached."""

    EXPORT = "export"
    MODEL = "model"
    MEASURE = "measure"
    PUBLISH = "publish"


@dataclass(frozen=True, slots=True)
class Work:
    """A step as far as its time goes.

    `export` names the model with its rows; `rows` are those that the step goes through,
    and `megabytes` is the size of the fp32 model.
    """

    kind: Kind
    export: str
    megabytes: float
    rows: int
    recipe: str = ""
    precision: str = ""

    def same_step(self, other: Work) -> bool:
        """Whether it is the same step, be it of another model."""
        return (self.kind, self.recipe) == (other.kind, other.recipe)


@dataclass(frozen=True, slots=True)
class Past:
    """A step that was done on this machine, and the seconds it took."""

    work: Work
    seconds: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """The seconds that a step is expected to take."""

    seconds: float
    basis: Basis


@dataclass(frozen=True, slots=True)
class _Rule:
    fixed: float
    megabyte: float
    row_megabyte: float

    def seconds(self, work: Work) -> float:
        return (
            self.fixed
            + self.megabyte * work.megabytes
            + self.row_megabyte * work.rows * work.megabytes
        )


# Measured on two cores of a virtual machine with networks of 0.1 to 100 MB; int8 with three
# calibrators, and without the search for layers to keep in float.
_RULES: Mapping[str, _Rule] = MappingProxyType(
    {
        Kind.EXPORT: _Rule(6.0, 0.15, 8e-4),
        Kind.MEASURE: _Rule(3.0, 0.1, 4e-4),
        Kind.PUBLISH: _Rule(5.0, 0.05, 0.0),
        "fp32": _Rule(0.1, 0.01, 0.0),
        "fp16": _Rule(0.5, 0.05, 0.0),
        "bf16": _Rule(0.5, 0.1, 0.0),
        "int8": _Rule(3.0, 0.1, 2e-3),
        "int4": _Rule(1.0, 0.2, 4e-4),
    }
)


def estimate(work: Work, history: Sequence[Past]) -> Estimate:
    """The expected seconds of `work`, given what was done here before."""
    same = [past for past in history if past.work.same_step(work)]
    own = [past.seconds for past in same if past.work.export == work.export]
    if own:
        return Estimate(statistics.median(own), Basis.THIS_MODEL)
    rule = _RULES[work.precision if work.kind is Kind.MODEL else work.kind]
    if not same:
        return Estimate(rule.seconds(work), Basis.RULE)
    off = statistics.median(past.seconds / rule.seconds(past.work) for past in same)
    return Estimate(rule.seconds(work) * off, Basis.OTHER_MODELS)
