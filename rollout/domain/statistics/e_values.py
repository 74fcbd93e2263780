"""Evidence that may be read at any time: likelihood ratios as e-values. Pure.

An e-value starts at 1 and, while its hypothesis holds, exceeds 1/alpha at any time with
probability at most alpha (Ville's inequality). So it may be read after every tick, without the
false alarms of a fixed-sample test that is repeated. Each one is a mixture over several
alternatives, kept as one logarithm per alternative.

The ratios take trials as independent. Requests in bursts are not: divide the logarithms by the
design effect (`bursts`), which makes a burst count as one trial. The error rates that remain are
simulated, not proved (`tests/rollout/test_gates_simulation.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from mlctl.rollout.domain.statistics.verdict import Hits

Logs = tuple[float, ...]
Evidence = Callable[[Hits, float], Logs]

_HIGHER_ODDS = (1.5, 2.0, 3.0, 6.0, 12.0, 30.0)
_LOWER_ODDS = (0.75, 0.5, 0.25, 0.1)
NO_EVIDENCE: Logs = (0.0,) * len(_HIGHER_ODDS)


def _rate(limit: float, odds: float) -> float:
    """Return the rate with `odds` times the odds of `limit`."""
    return limit * odds / (1.0 - limit + limit * odds)


@lru_cache(maxsize=1024)
def _factors(limit: float, odds: tuple[float, ...]) -> tuple[tuple[float, float], ...]:
    """Return log (rate/limit) and log ((1-rate)/(1-limit)) of each alternative's rate."""
    rates = [_rate(limit, each) for each in odds]
    return tuple((math.log(rate / limit), math.log((1 - rate) / (1 - limit))) for rate in rates)


def _ratios(hits: Hits, limit: float, odds: tuple[float, ...]) -> Logs:
    """Return log (rate/limit)^hits ((1-rate)/(1-limit))^(n-hits) of each alternative's rate."""
    found, n = hits
    return tuple([found * hit + (n - found) * miss for hit, miss in _factors(limit, odds)])


def above(hits: Hits, limit: float) -> Logs:
    """Return the evidence against "the rate is at most `limit`", 0 < limit < 1.

    A trial may be a share between 0 and 1: the ratio is then smaller than the mean of those of its
    parts, by concavity of the logarithm, and stays valid.
    """
    return _ratios(hits, limit, _HIGHER_ODDS)


def below(hits: Hits, limit: float) -> Logs:
    """Return the evidence against "the rate is at least `limit`": the proof that it is kept."""
    return _ratios(hits, limit, _LOWER_ODDS)


def higher(ours: Hits, theirs: Hits) -> Logs:
    """Return one tick's evidence against "our rate is at most theirs"; both sides have requests.

    Given the hits of both together, the chance that one of them is ours follows from the ratio of
    the rates and of the requests (Lindon and Malek, NeurIPS 2022). The rate itself may change from
    tick to tick, and so may the shares of the traffic.
    """
    if not (ours[0] or theirs[0]):
        return NO_EVIDENCE
    weight = ours[1] / theirs[1]
    equal = weight / (1.0 + weight)
    logs = []
    for ratio in _HIGHER_ODDS:
        chance = ratio * weight / (1.0 + ratio * weight)
        logs.append(
            ours[0] * math.log(chance / equal)
            + theirs[0] * math.log((1.0 - chance) / (1.0 - equal))
        )
    return tuple(logs)


def add(logs: Logs, more: Logs) -> Logs:
    """Return the evidence of both together."""
    return tuple([one + other for one, other in zip(logs, more, strict=True)])


def log_mean(logs: Logs, design_effect: float = 1.0) -> float:
    """Return the logarithm of the mixture, with `design_effect` requests counted as one."""
    scaled = [log / design_effect for log in logs]
    top = max(scaled)
    return top + math.log(sum([math.exp(log - top) for log in scaled]) / len(scaled))
