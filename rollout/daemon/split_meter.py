"""Measures both slots while the traffic is split, for one daemon."""

from __future__ import annotations

from rollout.daemon.controller import World
from rollout.domain.counts import Reading, difference
from rollout.domain.spec import Slot
from rollout.domain.split import BLOCK_SECONDS
from rollout.journal.journal import Journal


class SplitMeter:
    """Adds blocks of time to the record of the deployment `name`, with its daemon's `epoch`.

    What is counted between two daemons, or across a restart of the proxy, is left out.
    """

    def __init__(self, name: str, world: World, journal: Journal, epoch: int) -> None:
        self._name = name
        self._world = world
        self._journal = journal
        self._epoch = epoch
        self._before: tuple[Reading, float] | None = None

    def observe(self, live: Slot) -> None:
        """Close a block when it is over."""
        now = self._world.clock.monotonic()
        if self._before is not None and now - self._before[1] < BLOCK_SECONDS:
            return
        reading, before = self._world.meter.read(), self._before
        self._before = reading, now
        # A longer one was interrupted by a rollout, or by another split.
        if before is None or now - before[1] > 2 * BLOCK_SECONDS:
            return
        block = difference(before[0], reading)
        if block is not None:
            record = self._journal.split_record(self._name).add(block, live, self._world.edges)
            self._journal.put_split_record(self._name, record, self._epoch)
