"""Carries out what the autoscaling policy decides, for one daemon."""

from __future__ import annotations

from dataclasses import replace

from mlctl.rollout.daemon.context import DaemonContext
from mlctl.rollout.domain.interfaces import DataPlaneUnavailable
from mlctl.rollout.domain.spec import DeploymentSettings
from mlctl.rollout.domain.traffic.autoscale import (
    Bounds,
    ReplicaLoad,
    ScalingObservation,
    State,
    decide,
)
from mlctl.rollout.journal.records import Deployment


class Scaler:
    """Scales a deployment."""

    def __init__(self, context: DaemonContext) -> None:
        self._context = context
        self._state = State()

    def observe(
        self, deployment: Deployment, loads: tuple[ReplicaLoad, ...], *, rollout: bool
    ) -> None:
        """Evaluate the load once and record the number of replicas.

        During a rollout the number stays: both slots are compared at the same size. A
        sleeping deployment is woken for it.
        """
        settings = deployment.settings
        if settings.min_replicas is None or settings.max_replicas is None:
            return
        if rollout:
            self._state = State()
            self._write(settings.replicas, max(1, settings.replicas), "a rollout is under way")
            return
        try:
            reading = self._context.meter.read()
        except DataPlaneUnavailable:
            return
        observation = ScalingObservation(
            at=self._context.clock.monotonic(),
            replicas=settings.replicas,
            loads=loads,
            requests=sum(totals.requests for totals in reading.totals.values()),
            active=sum(reading.active.values()),
        )
        bounds = Bounds(
            settings.min_replicas,
            settings.max_replicas,
            settings.idle_seconds,
            settings.target_queue_rows,
            settings.cooldown_seconds,
        )
        self._state, replicas = decide(self._state, observation, bounds)
        self._write(settings.replicas, replicas, _why(observation))

    def _write(self, before: int, replicas: int, why: str) -> None:
        if replicas == before:
            return

        def resized(settings: DeploymentSettings) -> DeploymentSettings:
            # A client may have changed it since.
            return replace(settings, replicas=replicas) if settings.replicas == before else settings

        self._context.journal.resize(self._context.name, resized, why, self._context.epoch)


def _why(observation: ScalingObservation) -> str:
    rows = sum(load.queue_rows for load in observation.loads)
    busy = sum(load.busy for load in observation.loads) / max(1, len(observation.loads))
    return f"{rows:.0f} rows wait, models run {100 * busy:.0f} % of the time"
