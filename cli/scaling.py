"""The options about replicas that `up` and `scale` share."""

from __future__ import annotations

from dataclasses import dataclass

import click

from mlctl.cli.options import Duration, option

REPLICAS = click.IntRange(1, 64)


@dataclass(frozen=True, kw_only=True)
class ScalingOptions:
    """The bounds of autoscaling and its thresholds; None keeps what is set, or the default."""

    min_replicas: int | None = option(
        type=click.IntRange(0, 64),
        help="Scale with the load, down to this number; 0 stops all replicas without requests.",
    )
    max_replicas: int | None = option(type=REPLICAS, help="Scale with the load, up to this number.")
    idle_seconds: float | None = option(
        type=Duration("1ms"),
        name="--idle-time",
        help="Time without a request before the last replica stops.  [default: 5m]",
    )
    target_queue_rows: int | None = option(
        type=click.IntRange(1),
        metavar="ROWS",
        help="Add replicas above this number of waiting rows per worker.  [default: 20]",
    )
    cooldown_seconds: float | None = option(
        type=Duration("1s"),
        name="--cooldown",
        help="Time of low load before one replica stops.  [default: 1m]",
    )

    def bounds(self, replicas: int | None) -> tuple[int, int] | None:
        """Return both bounds if one of them is set; None for a fixed number of `replicas`."""
        if self.min_replicas is None and self.max_replicas is None:
            return None
        if self.max_replicas is None:
            raise click.UsageError("--min-replicas needs --max-replicas")
        if replicas is not None:
            raise click.UsageError("--replicas is a fixed number: leave out the bounds, or it")
        return (1 if self.min_replicas is None else self.min_replicas), self.max_replicas
