"""How much the requests of one burst count for: trials over time and their design effect. Pure.

Requests are not independent. A pause of the garbage collector, a stalled disk or one restart makes
hundreds of them slow or wrong together, and that is one event. The design effect is how many times
larger the variance of hits per block of time is than it would be for independent requests
(Kish, Survey Sampling, 1965): n requests then carry the evidence of n / design effect.
"""

from __future__ import annotations

import math
from typing import NamedTuple

# Lengths of the blocks in multiples of the longest burst. A burst that lies across two of the short
# ones is whole in a longer one. Much longer ones would take a lasting fault for a single burst.
_LENGTHS = (1, 4)
_MIN_BLOCKS = 3  # fewer have no variance worth the name
_BURST_HITS = 5  # fewer are no burst


class BlockSums(NamedTuple):
    """Blocks of one length: the open one, and sums over the closed ones.

    A tuple, like `Trials`: each tick makes a dozen, in a third of a frozen dataclass's time.

    Attributes:
        seconds, n, hits: of the open block.
        closed: closed blocks with at least one request.
        nn, hn, hh: sums over closed blocks of n², hits·n and hits².
    """

    seconds: float = 0.0
    n: float = 0.0
    hits: float = 0.0
    closed: int = 0
    nn: float = 0.0
    hn: float = 0.0
    hh: float = 0.0

    def add(self, hits: float, n: float, seconds: float, length: float) -> BlockSums:
        """Add one tick; the block closes once it is `length` seconds long."""
        seconds, n, hits = self.seconds + seconds, self.n + n, self.hits + hits
        if seconds < length:
            return BlockSums(seconds, n, hits, self.closed, self.nn, self.hn, self.hh)
        closed = self.closed + (n > 0)
        return BlockSums(
            0.0, 0.0, 0.0, closed, self.nn + n * n, self.hn + hits * n, self.hh + hits * hits
        )

    def variance(self, share: float) -> float | None:
        """Return the squared deviations of hits from `share`, summed; None with too few blocks."""
        if self.closed + (self.n > 0) < _MIN_BLOCKS:
            return None
        deviations = self.hh - 2.0 * share * self.hn + share * share * self.nn
        return deviations + (self.hits - share * self.n) ** 2


class Trials(NamedTuple):
    """Hits among `n` requests over time.

    `bad_blocks` counts the shortest blocks whose share exceeded the limit of their time, so that
    one burst, which touches two of them at most, is never taken for a lasting fault. `worst` is the
    highest share of one of them with several hits.
    """

    hits: float = 0.0
    n: int = 0
    bad_blocks: int = 0
    blocks: tuple[BlockSums, ...] = (BlockSums(),) * len(_LENGTHS)
    worst: float = 0.0

    def add(self, hits: float, n: int, seconds: float, *, burst: float, limit: float) -> Trials:
        """Add one tick of `seconds`; `burst` is the shortest block's length in seconds."""
        first = self.blocks[0]
        blocks = tuple(
            [
                each.add(hits, n, seconds, length * burst)
                for each, length in zip(self.blocks, _LENGTHS, strict=True)
            ]
        )
        bad, worst = False, self.worst
        if blocks[0].closed > first.closed:
            found = (first.hits + hits) / (first.n + n)
            bad = found > limit
            if first.hits + hits >= _BURST_HITS:
                worst = max(worst, found)
        return Trials(self.hits + hits, self.n + n, self.bad_blocks + bad, blocks, worst)

    @property
    def share(self) -> float:
        """Hits per request; 0 without requests."""
        return self.hits / self.n if self.n else 0.0

    @property
    def design_effect(self) -> float:
        """Return how many requests count as one: 1 for independent ones, never less."""
        share = self.share
        independent = self.n * share * (1.0 - share)
        if independent <= 0.0:
            return 1.0
        found = (each.variance(share) for each in self.blocks)
        return max(1.0, *(each / independent for each in found if each is not None), 1.0)

    def noise(self, requests: float, design_effect: float) -> float:
        """Return the standard error between this share and that of `requests` others like it."""
        if not self.n or not requests:
            return 0.0
        variance = self.share * (1.0 - self.share) * design_effect
        return math.sqrt(variance * (1.0 / self.n + 1.0 / requests))


NO_TRIALS = Trials()
