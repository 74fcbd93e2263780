"""A server in simulated time: the real batching policy, a model that is only a cost."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from mlctl.core.errors import MlctlError
from mlctl.services.model.batch_costs import BatchCosts
from mlctl.services.online.batching.scheduler import BatchScheduler, Limits, Priority, Ticket

Cost = Callable[[int], float]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: when it comes, and what it brings."""

    moment: float
    rows: int = 1
    timeout: float = 30.0
    priority: Priority = Priority.NORMAL


@dataclass(slots=True)
class Story:
    """What became of the requests, and of the batches, in the order of their ends."""

    answered: list[tuple[Arrival, float]] = field(default_factory=list)
    refused: list[tuple[Arrival, MlctlError]] = field(default_factory=list)
    expired: list[Arrival] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)

    def latencies(self, since: float = 0.0, priority: Priority | None = None) -> list[float]:
        """Seconds from arrival to answer of what came at `since` or later, in ascending order."""
        return sorted(
            end - arrival.moment
            for arrival, end in self.answered
            if arrival.moment >= since and priority in (None, arrival.priority)
        )


def percentile(values: list[float], share: float) -> float:
    """The value of sorted `values` that `share` of them do not exceed."""
    return values[min(len(values) - 1, int(share * len(values)))]


def poisson(rate: float, seconds: float, *, start: float = 0.0, seed: int = 1) -> list[Arrival]:
    """Single rows at `rate` a second, at random."""
    generator, moment, arrivals = random.Random(seed), start, []
    while (moment := moment + generator.expovariate(rate)) < start + seconds:
        arrivals.append(Arrival(moment))
    return arrivals


def warmed(cost: Cost, max_rows: int) -> BatchCosts:
    """The costs that a server has learned before it is ready."""
    return BatchCosts({rows: cost(rows) for rows in {1, max(1, max_rows // 4), max_rows}})


class SimulatedServer:
    """Plays arrivals against a policy until all of them have left."""

    def __init__(self, limits: Limits, cost: Cost, costs: BatchCosts | None = None) -> None:
        self.policy: BatchScheduler[Ticket] = BatchScheduler(
            limits, costs or warmed(cost, limits.max_rows)
        )
        self.story = Story()
        self._cost = cost
        self._open: dict[Ticket, Arrival] = {}
        self._ends = inf
        self._batch: list[Ticket] = []
        self._seconds = 0.0

    def play(self, arrivals: Iterable[Arrival]) -> Story:
        """The whole story of `arrivals`, which must be in order of time."""
        for arrival in arrivals:
            self._until(arrival.moment)
            self._offer(arrival)
            self._pump(arrival.moment)
        self._until(inf)
        return self.story

    def loop(
        self,
        clients: int,
        think: float,
        until: float,
        seed: int = 1,
        sizes: Sequence[int] = (1,),
    ) -> Story:
        """`clients` that ask again about `think` seconds after each answer; none after `until`.

        Each request has the rows of one of `sizes`, by chance.
        """
        generator = random.Random(seed)
        coming = [generator.uniform(0, 0.01) for _ in range(clients)]
        heapq.heapify(coming)
        while coming or self._event() < inf:
            if not coming or self._event() <= coming[0]:
                known = len(self.story.answered)
                self._step(self._event())
                for _, end in self.story.answered[known:]:
                    if (moment := end + generator.uniform(0.5, 1.5) * think) < until:
                        heapq.heappush(coming, moment)
            else:
                arrival = Arrival(heapq.heappop(coming), generator.choice(sizes))
                self._offer(arrival)
                self._pump(arrival.moment)
        return self.story

    def ask(self, moment: float) -> float:
        """One single row, with nobody else about: the seconds until its answer."""
        self.play([Arrival(moment)])
        return self.story.answered[-1][1] - moment

    def _until(self, moment: float) -> None:
        while True:
            event = self._event()
            if event > moment or event == inf:
                return
            self._step(event)

    def _event(self) -> float:
        wanted = self.policy.next_event(0.0 if self._ends == inf else self._ends)
        return min(self._ends, inf if wanted is None else wanted)

    def _step(self, now: float) -> None:
        if now >= self._ends:
            for ticket in self._batch:
                if ticket in self._open:
                    self.story.answered.append((self._open.pop(ticket), now))
            self._ends = inf
            self.policy.finished(self._seconds)
        self._pump(now)

    def _offer(self, arrival: Arrival) -> None:
        now = arrival.moment
        ticket = Ticket(arrival.rows, "k", now, now + arrival.timeout, arrival.priority)
        try:
            self.policy.offer(ticket)
        except MlctlError as error:
            self.story.refused.append((arrival, error))
        else:
            self._open[ticket] = arrival

    def _pump(self, now: float) -> None:
        for ticket in self.policy.expire(now):
            self.story.expired.append(self._open.pop(ticket))
        if batch := self.policy.release(now):
            self._batch = batch
            rows = sum(ticket.rows for ticket in batch)
            self._seconds = self._cost(rows)
            self._ends = now + self._seconds
            self.story.batches.append(rows)
