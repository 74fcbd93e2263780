"""Autoscaling policy: how many replicas a deployment needs, from its load over time. Pure.

It acts on the rows that wait and on the share of time in which models run, both per worker,
and only on what has held for a while. More comes quickly and less slowly: a replica too many
costs memory, one too few costs answers. What is added is sized so that the replicas left
after a step down would again be too few, hence a steady load does not make it swing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

# Replicas are added above this share of time that a worker runs.
_BUSY = 0.85
# The share of time that a worker should run; down only where fewer would still be below `_CALM`.
_TARGET = 0.6
_CALM = 0.5
_HOT_SECONDS = 3.0
# No step up so soon after another one: the last one's effect is not yet seen.
_PAUSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """The minimum and maximum number of replicas, and when to change it.

    0 is reached only after `idle_seconds` without a request. More are started above `queue_rows`
    waiting rows per worker, one fewer after `cooldown_seconds` of low load.
    """

    min_replicas: int
    max_replicas: int
    idle_seconds: float
    queue_rows: float = 20.0
    cooldown_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """One replica's load per worker: rows that wait, and the share of time (0 to 1) it runs."""

    queue_rows: float
    busy: float


@dataclass(frozen=True, slots=True)
class ScalingObservation:
    """One tick: when (seconds), the number of replicas to run now, and what they do.

    `loads` holds a load for every replica that serves; fewer than `replicas` means that some are
    starting or silent. `requests` is a count that moves with each request. `active` are the
    requests now under way.
    """

    at: float
    replicas: int
    loads: tuple[ReplicaLoad, ...]
    requests: int
    active: int


@dataclass(frozen=True, slots=True)
class State:
    """What the policy remembers: since when it is hot, cold and idle, and its last change."""

    hot_since: float | None = None
    cold_since: float | None = None
    idle_since: float | None = None
    requests: int | None = None
    changed: float | None = None


def decide(state: State, observation: ScalingObservation, bounds: Bounds) -> tuple[State, int]:
    """The state after this tick, and the number of replicas to have from now on.

    Zero stays zero here: only a request wakes a deployment.
    """
    state = _remember(state, observation, bounds)
    target = _target(state, observation, bounds)
    if target == observation.replicas:
        return state, target
    return replace(state, hot_since=None, cold_since=None, changed=observation.at), target


def _target(state: State, observation: ScalingObservation, bounds: Bounds) -> int:
    if observation.replicas == 0:
        return 0 if bounds.min_replicas == 0 else bounds.min_replicas
    if _lasts(state.idle_since, observation.at, bounds.idle_seconds) and bounds.min_replicas == 0:
        return 0
    count = min(max(observation.replicas, bounds.min_replicas), bounds.max_replicas)
    if count != observation.replicas:
        return count
    if _lasts(state.hot_since, observation.at, _HOT_SECONDS) and _settled(state, observation.at):
        return min(bounds.max_replicas, _more(observation, bounds))
    if _lasts(state.cold_since, observation.at, bounds.cooldown_seconds):
        return max(bounds.min_replicas, 1, count - 1)
    return count


def _remember(state: State, observation: ScalingObservation, bounds: Bounds) -> State:
    moved = observation.requests != state.requests or observation.active > 0
    return State(
        hot_since=_since(state.hot_since, observation.at, _is_hot(observation, bounds)),
        cold_since=_since(state.cold_since, observation.at, _is_cold(observation)),
        idle_since=_since(
            None if moved else state.idle_since, observation.at, observation.active == 0
        ),
        requests=observation.requests,
        changed=state.changed,
    )


def _is_hot(observation: ScalingObservation, bounds: Bounds) -> bool:
    """Whether the serving replicas are overloaded and no further one is starting."""
    if not observation.loads or len(observation.loads) < observation.replicas:
        return False
    return _rows(observation) > bounds.queue_rows or _busy(observation) > _BUSY


def _is_cold(observation: ScalingObservation) -> bool:
    """Whether one fewer could do it."""
    rest = len(observation.loads) - 1
    if rest < 1 or len(observation.loads) < observation.replicas:
        return False
    share = len(observation.loads) / rest
    return _rows(observation) * share < 1.0 and _busy(observation) * share < _CALM


def _more(observation: ScalingObservation, bounds: Bounds) -> int:
    """Return how many replicas bring the load to the target: at least one more, at most double."""
    by_time = math.ceil(observation.replicas * _busy(observation) / _TARGET)
    by_rows = math.ceil(observation.replicas * _rows(observation) / bounds.queue_rows)
    return max(observation.replicas + 1, min(max(by_time, by_rows), 2 * observation.replicas))


def _rows(observation: ScalingObservation) -> float:
    return sum(load.queue_rows for load in observation.loads) / len(observation.loads)


def _busy(observation: ScalingObservation) -> float:
    return sum(load.busy for load in observation.loads) / len(observation.loads)


def _since(before: float | None, now: float, holds: bool) -> float | None:
    if not holds:
        return None
    return now if before is None else before


def _lasts(since: float | None, now: float, seconds: float) -> bool:
    return since is not None and now - since >= seconds


def _settled(state: State, now: float) -> bool:
    return state.changed is None or now - state.changed >= _PAUSE_SECONDS
