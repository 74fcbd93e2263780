"""Evidence that stays valid at every tick: test martingales over counters. Pure.

An e-process starts at 1 and, while its hypothesis holds, exceeds 1/alpha at any time with
probability at most alpha (Ville's inequality). So it may be looked at after every tick
without the false alarms of a repeated fixed-sample test. Each one is a mixture over several
alternatives, kept as one logarithm per alternative.

The requests of one tick depend on each other: a pause makes many slow at once. Evidence of harm
therefore bets on a whole tick (`share_step`, `sign_step`), and only the proof of a limit counts
requests one by one (`bound_step`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rollout.domain.verdict import Hits, breaks

Logs = tuple[float, ...]

# Bets of the sign test: small ones find small lasting differences, large ones find big ones.
SIGN_BETS: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75, 0.9)
# Parts of what may be staked on one tick's share without ever losing all.
SHARE_STAKES: tuple[float, ...] = (0.02, 0.05, 0.15, 0.4, 0.9)
LOWER_ODDS = (0.75, 0.5, 0.25, 0.1)


def alternatives_below(limit: float) -> tuple[float, ...]:
    """Rates below `limit` (0 < limit < 1) to bet on: fixed parts of its odds."""
    return tuple(limit * part / (1.0 - limit + limit * part) for part in LOWER_ODDS)


def start(alternatives: int) -> Logs:
    """No evidence: every alternative at e = 1."""
    return (0.0,) * alternatives


def bound_step(logs: Logs, hits: float, n: int, limit: float) -> Logs:
    """Fold `hits` of `n` independent trials into the test of "the rate is at least `limit`".

    The likelihood ratio (p/limit)^hits * ((1-p)/(1-limit))^(n-hits) for each alternative `p`
    below the limit. A trial may be a share between 0 and 1: the ratio is then a lower bound of
    the bet 1 + c(share - limit), by concavity of the logarithm, and stays valid.
    """
    return tuple(
        log + hits * math.log(p / limit) + (n - hits) * math.log((1.0 - p) / (1.0 - limit))
        for log, p in zip(logs, alternatives_below(limit), strict=True)
    )


def share_step(logs: Logs, hits: float, n: int, limit: float) -> Logs:
    """Fold one tick into the test of "the share of hits is at most `limit`".

    E *= 1 + stake * (hits/n - limit)/limit: a bet on the mean of values in [0, 1] (Waudby-Smith
    and Ramdas, JRSS B 86, 2024). It asks nothing of the requests inside a tick, only that a
    tick's expected share is at most `limit`. A tick of none says nothing.
    """
    if n == 0:
        return logs
    excess = hits / n / limit - 1.0
    return tuple(
        log + math.log1p(stake * excess) for log, stake in zip(logs, SHARE_STAKES, strict=True)
    )


def sign_step(logs: Logs, sign: int) -> Logs:
    """Fold one tick's comparison: E *= 1 + bet * sign, with sign -1, 0 or 1."""
    return tuple(log + math.log1p(bet * sign) for log, bet in zip(logs, SIGN_BETS, strict=True))


def log_mean(logs: Logs) -> float:
    """The logarithm of the mean of the e-values whose logarithms are given."""
    top = max(logs)
    return top + math.log(sum(math.exp(log - top) for log in logs) / len(logs))


def thinned_sign(ours: tuple[int, int], theirs: tuple[int, int], seed: tuple[int, ...]) -> int:
    """Compare two (hits, n) pairs of unequal n fairly: -1, 0 or 1 for fewer, equal, more.

    The larger side is thinned to the smaller one's n by a hypergeometric draw. Under equal
    behaviour the sign is symmetric even when the requests within a tick depend on each other,
    which a test per request is not. The draw is a function of `seed`. 0 if a side is empty.
    """
    n = min(ours[1], theirs[1])
    if n == 0:
        return 0
    generator = np.random.default_rng(seed)
    mine, other = (_thin(hits, total, n, generator) for hits, total in (ours, theirs))
    return (mine > other) - (mine < other)


def _thin(hits: int, total: int, n: int, generator: np.random.Generator) -> int:
    if n == total:
        return hits
    return int(generator.hypergeometric(hits, total - hits, n))


@dataclass(frozen=True, slots=True)
class LimitEvidence:
    """Evidence on one absolute limit of a share.

    Attributes:
        above: bets that the share is above the limit, one tick each.
        below: bets that it is below the limit, one request each.
        bad_ticks: ticks whose share was above the limit.
    """

    above: Logs = (0.0,) * len(SHARE_STAKES)
    below: Logs = (0.0,) * len(LOWER_ODDS)
    bad_ticks: int = 0

    def fold(self, hits: Hits, limit: float, *, proves: bool = True) -> LimitEvidence:
        """Add one tick; without `proves` it can only show harm."""
        return LimitEvidence(
            above=share_step(self.above, *hits, limit),
            below=bound_step(self.below, *hits, limit) if proves else self.below,
            bad_ticks=self.bad_ticks + breaks(hits, limit),
        )
