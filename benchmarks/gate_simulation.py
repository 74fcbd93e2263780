"""Whole rollouts in front of the product's own gates, in simulated time.

A service has some requests a second; a version's requests are slow or wrong with a base rate, and
with another one during episodes that begin at random. Requests go to the candidate by its weight.
Everything that decides is the product's: the fold, the gates and the state machine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from mlctl.rollout.domain.machine import state_machine as machine
from mlctl.rollout.domain.machine.evidence import begin
from mlctl.rollout.domain.machine.state_machine import (
    RolloutPhase,
    RolloutProgress,
    TickObservation,
)
from mlctl.rollout.domain.spec import Outcome, RolloutSpec
from mlctl.rollout.domain.traffic.counts import Counts, Window
from mlctl.rollout.domain.traffic.traffic_record import BLOCK_SECONDS


@dataclass(frozen=True, slots=True)
class Version:
    """How one version answers.

    Attributes:
        slow, errors, client_errors: shares of its requests outside of episodes.
        period: mean seconds from one episode to the next; 0 for none. length: of one, in seconds.
        slow_inside, errors_inside: shares during an episode.
        since, until: seconds of the rollout between which all this holds; else each request is
            good.
    """

    slow: float = 0.0
    errors: float = 0.0
    client_errors: float = 0.0
    period: float = 0.0
    length: float = 5.0
    slow_inside: float = 0.0
    errors_inside: float = 0.0
    since: float = 0.0
    until: float = math.inf

    def episodes(self, generator: np.random.Generator, tick: float) -> Iterator[bool]:
        """Yield for each tick of `tick` seconds whether it lies in an episode."""
        left = 0
        while True:
            if self.period and generator.random() < tick / self.period:
                left = round(self.length / tick)
            yield left > 0
            left -= left > 0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a simulated rollout ended, why, and after how many seconds."""

    outcome: Outcome | None
    gate: str
    why: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Service:
    """The traffic of one deployment.

    Attributes:
        per_second: mean requests a second (Poisson).
        record_seconds: how long the live version was watched before the rollout.
        shared: both versions have their episodes at the same time.
        stuck_client: share of the requests that come from one client whose payload every version
            rejects, and which sticky routing sends to the candidate.
        tick: seconds from one evaluation to the next.
        growth: how much the share of slow requests of both versions grows in an hour, as a
            multiple of itself.
        retries: clients send a failed request once more.
    """

    per_second: float = 100.0
    record_seconds: float = 1800.0
    shared: bool = False
    stuck_client: float = 0.0
    tick: float = 1.0
    growth: float = 0.0
    retries: bool = False

    def at(self, version: Version, now: float) -> Version:
        """Return how `version` answers at `now` seconds of the rollout, negative before it."""
        if not version.since < now <= version.until:
            return Version()
        growth = max(0.0, 1.0 + self.growth * now / 3600.0)
        return replace(version, slow=min(1.0, version.slow * growth))

    def block(
        self, live: Version, episodes: Iterator[bool], generator: np.random.Generator
    ) -> Counts:
        """Draw what the live version does in one block of its record, the stuck client included."""
        total, tick = Counts(), self.tick
        for _ in range(round(BLOCK_SECONDS / tick)):
            n = int(generator.poisson(self.per_second * tick))
            stuck = _hits(n, self.stuck_client, generator)
            total = total.plus(draw(live, n - stuck, generator, inside=next(episodes)))
            if stuck:
                total = total.plus(Counts(stuck, 0, stuck, client_errors=stuck))
        return total


def rollout(
    candidate: Version, live: Version, spec: RolloutSpec, seed: int, service: Service = Service()
) -> Ended:
    """Run one rollout from its first step to its end."""
    generator, tick = np.random.default_rng(seed), service.tick
    ours, theirs = candidate.episodes(generator, tick), live.episodes(generator, tick)
    blocks = int(service.record_seconds / BLOCK_SECONDS)
    begun = replace(live, since=-math.inf)
    record = [
        (
            service.block(service.at(begun, BLOCK_SECONDS * (at - blocks)), theirs, generator),
            BLOCK_SECONDS,
        )
        for at in range(blocks)
    ]
    progress = RolloutProgress(phase=RolloutPhase.WARM, evidence=begin(record, spec))
    progress = machine.move(progress, machine.next_signal(progress, spec), 0.0)
    now, again = 0.0, 0
    while progress.phase in machine.EXPOSED:
        now += tick
        weight = machine.candidate_weight(progress, spec)
        others = service.per_second * (1.0 - service.stuck_client)
        n = int(generator.poisson(others * tick)) + again
        mine = int(generator.binomial(n, weight / 100))
        inside = next(theirs), next(ours)
        shared = inside[0] if service.shared else inside[1]
        window = Window(
            draw(service.at(candidate, now), mine, generator, inside=shared),
            draw(service.at(begun, now), n - mine, generator, inside=inside[0]),
            representative=spec.representative(weight),
            seconds=tick,
        )
        again = (window.candidate.errors + window.live.errors) * service.retries
        if service.stuck_client:
            window = _with_stuck_client(window, service, generator)
        observation = TickObservation(window)
        progress = machine.absorb(progress, observation, spec, now)
        progress = machine.apply_verdict(
            progress, machine.judge(progress, observation, spec, now), spec, now
        )
    ruling = progress.ruling
    assert ruling is not None
    return Ended(progress.planned, ruling.gate, ruling.why, now)


def ends(
    candidate: Version,
    live: Version,
    spec: RolloutSpec,
    runs: int,
    service: Service = Service(),
) -> tuple[Counter[Outcome | None], list[Ended]]:
    """Run `runs` rollouts with the seeds from 0 on; count their outcomes."""
    found = [rollout(candidate, live, spec, seed, service) for seed in range(runs)]
    return Counter(each.outcome for each in found), found


def draw(
    version: Version, n: int, generator: np.random.Generator, *, inside: bool = False
) -> Counts:
    """Draw what `n` requests to `version` do in one tick."""
    slow = version.slow_inside if inside else version.slow
    errors = version.errors_inside if inside else version.errors
    slows = _hits(n, slow, generator)
    return Counts(
        n,
        _hits(n, errors, generator),
        n,
        slow=slows,
        tail=slows,
        client_errors=_hits(n, version.client_errors, generator),
    )


def _hits(n: int, share: float, generator: np.random.Generator) -> int:
    return int(generator.binomial(n, share)) if share else 0


def _with_stuck_client(window: Window, service: Service, generator: np.random.Generator) -> Window:
    """Send the stuck client's requests to the candidate too: each is the client's own error."""
    n = int(generator.poisson(service.per_second * service.tick * service.stuck_client))
    more = Counts(n, 0, n, client_errors=n)
    return replace(window, candidate=window.candidate.plus(more))


__all__ = ["Ended", "Service", "Version", "draw", "ends", "rollout"]
