"""Measures both slots while the traffic is split, for one daemon."""

from __future__ import annotations

from mlctl.rollout.daemon.context import DaemonContext
from mlctl.rollout.domain.spec import Slot
from mlctl.rollout.domain.traffic.counts import Reading, difference
from mlctl.rollout.domain.traffic.split import BLOCK_SECONDS


class SplitMeter:
    """Adds blocks of time to the record of a split.

    What is counted between two daemons, or across a restart of the proxy, is left out.
    """

    def __init__(self, context: DaemonContext) -> None:
        self._context = context
        self._before: tuple[Reading, float] | None = None

    def observe(self, live: Slot) -> None:
        """Close a block when it is over."""
        now = self._context.clock.monotonic()
        if self._before is not None and now - self._before[1] < BLOCK_SECONDS:
            return
        reading, before = self._context.meter.read(), self._before
        self._before = reading, now
        # A longer one was interrupted by a rollout, or by another split.
        if before is None or now - before[1] > 2 * BLOCK_SECONDS:
            return
        block = difference(before[0], reading)
        if block is not None:
            context = self._context
            record = context.journal.split_record(context.name).add(block, live, context.edges)
            context.journal.put_split_record(context.name, record, context.epoch)
