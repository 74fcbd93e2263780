"""The traffic of a deployment by hour, in a file that its daemon replaces once an hour."""

from __future__ import annotations

from pydantic import TypeAdapter

from bundle.files import write_atomic
from rollout.domain.batch_traffic import KEPT_HOURS, TrafficHour
from rollout.journal import paths

_HOURS = TypeAdapter(tuple[TrafficHour, ...])


def read_traffic(name: str) -> tuple[TrafficHour, ...]:
    """Return the newest hours of the deployment `name`, oldest first."""
    path = paths.traffic(name)
    return _HOURS.validate_json(path.read_bytes()) if path.exists() else ()


def add_traffic(name: str, hour: TrafficHour) -> None:
    """Add an hour, and forget the oldest one after a week."""
    kept = (*read_traffic(name), hour)[-KEPT_HOURS:]
    write_atomic(paths.traffic(name), _HOURS.dump_json(kept))
