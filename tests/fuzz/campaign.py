"""A run against one target: structure by Hypothesis and raw mutation take turns.

An input that led somewhere new becomes one of those that are mutated.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.mutate import mutated
from tests.fuzz.target import Feed, FindingError, Target, Way, examine

_TURN = 200
_LONGEST_POOL = 2000


@dataclass
class Campaign:
    """`findings` are inputs by what they did, the shortest of each kind."""

    target: Target
    feed: Feed
    rng: random.Random
    pool: list[bytes] = field(default_factory=list)
    ways: set[Way] = field(default_factory=set)
    findings: dict[str, bytes] = field(default_factory=dict)
    fed: int = 0

    def replay(self) -> None:
        """Feed what is kept. Raises FindingError at the first input that still is one."""
        for data in self.target.seeds():
            self.ways.add(examine(self.target, self.feed, data))
            self.pool.append(data)
            self.fed += 1

    def run(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Look for findings for so long."""
        end = clock() + seconds
        while clock() < end:
            self.draw(_TURN)
            for _ in range(_TURN):
                self.try_one(mutated(self.rng, self.pool or [b""]))

    def mutate(self, count: int) -> None:
        """Try so many mutations."""
        for _ in range(count):
            self.try_one(mutated(self.rng, self.pool or [b""]))

    def draw(self, examples: int, *, derandomize: bool = False) -> None:
        """Try so many inputs with structure."""
        quiet = settings(
            max_examples=examples,
            database=None,
            deadline=None,
            derandomize=derandomize,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )

        def each(data: bytes) -> None:
            self.try_one(data)

        quiet(given(self.target.structured)(each))()

    def try_one(self, data: bytes) -> None:
        self.fed += 1
        try:
            way = examine(self.target, self.feed, data)
        except FindingError as error:
            self._found(str(error), data)
            return
        if way not in self.ways and len(self.pool) < _LONGEST_POOL:
            self.ways.add(way)
            self.pool.append(data)

    def keep(self) -> list[str]:
        """Write the findings to the corpus; their file names."""
        names = [self._write("finding", data) for data in self.findings.values()]
        return sorted(names)

    def keep_ways(self, longest: int) -> None:
        """Write the short inputs that led somewhere new to the corpus."""
        known = set(self.target.seeds())
        for data in self.pool:
            if data not in known and len(data) <= longest:
                self._write("way", data)

    def _write(self, kind: str, data: bytes) -> str:
        name = f"{kind}-{hashlib.sha256(data).hexdigest()[:12]}"
        (self.target.corpus / name).write_bytes(data)
        return name

    def _found(self, what: str, data: bytes) -> None:
        kind = what.partition("'")[0][:60]  # not the values that it was told of
        known = self.findings.get(kind)
        if known is None or len(data) < len(known):
            self.findings[kind] = data
