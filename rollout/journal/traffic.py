"""The traffic of a deployment by hour, in a file that its daemon replaces once an hour."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import TypeAdapter

from mlctl.core.clock import Clock
from mlctl.core.files import write_atomic
from mlctl.rollout.domain.traffic.batch_traffic import HOUR_SECONDS, KEPT_HOURS, TrafficHour
from mlctl.rollout.journal import paths

_HOURS = TypeAdapter(tuple[TrafficHour, ...])


def read_traffic(name: str) -> tuple[TrafficHour, ...]:
    """Return the newest hours of the deployment `name`, oldest first."""
    path = paths.traffic(name)
    return _HOURS.validate_json(path.read_bytes()) if path.exists() else ()


class HourlyTraffic:
    """Records the work of the deployment `name`, for the hint of `mlctl status`.

    `take_work` returns rows and model seconds since its last call.
    """

    def __init__(
        self, name: str, take_work: Callable[[], tuple[float, float]], clock: Clock
    ) -> None:
        self._name = name
        self._take_work = take_work
        self._clock = clock
        self._began = clock.wall()

    def observe(self, workers: int) -> None:
        """Record the last hour once it is over, and forget what is older than a week.

        `workers` run now.
        """
        now, began = self._clock.wall(), self._began
        if now // HOUR_SECONDS == began // HOUR_SECONDS:
            return
        self._began = now
        rows, seconds = self._take_work()
        hour = TrafficHour(began, rows, seconds, workers * (now - began))
        kept = (*read_traffic(self._name), hour)[-KEPT_HOURS:]
        write_atomic(paths.traffic(self._name), _HOURS.dump_json(kept))
