"""The deployment's traffic now, measured at its own proxy for a short while."""

from __future__ import annotations

import time

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.domain.interfaces import DataPlaneUnavailable, Meter
from mlctl.rollout.domain.machine.planner import RolloutPlan, Today, plan, today
from mlctl.rollout.domain.spec import Revision, RolloutSpec
from mlctl.rollout.domain.traffic.counts import Totals, difference
from mlctl.rollout.drivers.proxies import edges_of, proxy_of
from mlctl.rollout.journal import paths, rejections
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.records import Deployment

MEASURED_SECONDS = 3.0


def check_promotion(name: str, revision: Revision, spec: RolloutSpec) -> None:
    """Raise what `Journal.begin` would, then INSUFFICIENT_TRAFFIC if it cannot end in time."""
    with Journal(paths.journal()) as journal:
        journal.check(name, revision, spec)
    plan_for(name, spec).require_end()


def broken_by(name: str, revision: Revision) -> tuple[str, ...]:
    """What callers of deployment `name` would miss at `revision`. DEPLOYMENT_NOT_FOUND."""
    with Journal(paths.journal()) as journal:
        return rejections.broken(journal.live_deployment(name).live, revision)


def plan_for(name: str, spec: RolloutSpec, seconds: float = MEASURED_SECONDS) -> RolloutPlan:
    """What a rollout of deployment `name` would need at the traffic of the next `seconds`.

    DEPLOYMENT_NOT_FOUND; UNAVAILABLE if its proxy does not answer.
    """
    with Journal(paths.journal()) as journal:
        deployment = journal.live_deployment(name)
    return plan(spec, _measured(deployment, spec, seconds), deployment.settings.tick_seconds)


def _measured(deployment: Deployment, spec: RolloutSpec, seconds: float) -> Today:
    directory = paths.directory(deployment.name)
    proxy = proxy_of(directory, deployment.ports, deployment.settings)
    try:
        with proxy.data_plane() as data_plane:
            counted, took = _count(data_plane, seconds)
    except DataPlaneUnavailable as error:
        raise MlctlError(
            ErrorCode.UNAVAILABLE,
            f"the proxy of {deployment.name!r} did not answer while its traffic was measured",
            f"`mlctl status {deployment.name}` brings it back.",
        ) from error
    return today(counted, took, spec, edges_of(deployment.settings))


def _count(meter: Meter, seconds: float) -> tuple[Totals, float]:
    """What both slots together answered, and in how many seconds."""
    begun, before = time.monotonic(), meter.read()
    time.sleep(seconds)
    after, took = meter.read(), time.monotonic() - begun
    parts = difference(before, after)
    if parts is None:
        raise DataPlaneUnavailable("the proxy was restarted meanwhile")
    first, second = parts.values()
    return first.plus(second), took
