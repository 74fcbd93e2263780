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
)


def bound_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --min-replicas, --max-replicas and --idle-time."""
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
    idle_seconds: float | None,
) -> DeploymentSettings:
    """The settings of a new deployment."""
    from rollout.domain.spec import IDLE_SECONDS, DeploymentSettings

    least, most = bounds(min_replicas, max_replicas, replicas) or (None, None)
    return DeploymentSettings(
        replicas=replicas or max(1, least or 1),
        workers=workers,
        min_replicas=least,
        max_replicas=most,
        idle_seconds=IDLE_SECONDS if idle_seconds is None else idle_seconds,
    )
