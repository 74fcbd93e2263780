"""The options about replicas that `up` and `scale` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from cli.options import Duration

if TYPE_CHECKING:
    from rollout.domain.spec import DeploymentSettings

_BOUNDS = (
    click.option(
        "--min-replicas",
        type=click.IntRange(0, 64),
        help="Scale with the load, down to this number; 0 stops all replicas without requests.",
    ),
    click.option(
        "--max-replicas", type=click.IntRange(1, 64), help="Scale with the load, up to this number."
    ),
    click.option(
        "--idle-time",
        "idle_seconds",
        type=Duration("1ms"),
        help="Time without a request before the last replica stops.  [default: 5m]",
    ),
    click.option(
        "--target-queue-rows",
        type=click.IntRange(1),
        metavar="ROWS",
        help="Add replicas above this number of waiting rows per worker.  [default: 20]",
    ),
    click.option(
        "--cooldown",
        "cooldown_seconds",
        type=Duration("1s"),
        help="Time of low load before one replica stops.  [default: 1m]",
    ),
)


def bound_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of autoscaling."""
    for option in reversed(_BOUNDS):
        function = option(function)
    return function


def bounds(
    min_replicas: int | None, max_replicas: int | None, replicas: int | None
) -> tuple[int, int] | None:
    """Both bounds, where one of them was given; None for a fixed number of replicas."""
    if min_replicas is None and max_replicas is None:
        return None
    if max_replicas is None:
        raise click.UsageError("--min-replicas needs --max-replicas")
    if replicas is not None:
        raise click.UsageError("--replicas is a fixed number: leave out the bounds, or it")
    return (1 if min_replicas is None else min_replicas), max_replicas


def settings_of(
    *,
    replicas: int | None,
    workers: int,
    min_replicas: int | None,
    max_replicas: int | None,
    **others: Any,
) -> DeploymentSettings:
    """Return the settings of a new deployment; `others` are fields, None for their defaults."""
    from rollout.domain.spec import DeploymentSettings

    least, most = bounds(min_replicas, max_replicas, replicas) or (None, None)
    return DeploymentSettings(
        replicas=replicas or max(1, least or 1),
        workers=workers,
        min_replicas=least,
        max_replicas=most,
        **{name: value for name, value in others.items() if value is not None},
    )
