"""Records the work of each hour, for the hint of `mlctl status`."""

from __future__ import annotations

from collections.abc import Callable

from bundle.clock import Clock
from rollout.domain.batch_traffic import HOUR_SECONDS, TrafficHour
from rollout.journal.traffic import add_traffic


class HourlyTraffic:
    """The work of the deployment `name`; `take_work` returns rows and model seconds since its last
    call.
    """

    def __init__(
        self, name: str, take_work: Callable[[], tuple[float, float]], clock: Clock
    ) -> None:
        self._name = name
        self._take_work = take_work
        self._clock = clock
        self._began = clock.wall()

    def observe(self, workers: int) -> None:
        """Record the last hour once it is over; `workers` run now."""
        now, began = self._clock.wall(), self._began
        if now // HOUR_SECONDS == began // HOUR_SECONDS:
            return
        self._began = now
        rows, seconds = self._take_work()
        hour = TrafficHour(began, rows, seconds, workers * (now - began))
        add_traffic(self._name, hour)
