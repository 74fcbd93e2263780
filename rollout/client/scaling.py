"""Change the number of replicas of a deployment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.client.lifecycle import ensure_daemon
from mlctl.rollout.client.process_table import slot_rows
from mlctl.rollout.domain.spec import DeploymentSettings
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.records import Deployment


def scale(name: str, replicas: int | None = None, **given: Any) -> Deployment:
    """Request `replicas` and no autoscaling, or autoscaling between the bounds that are `given`.

    `given` are fields of `DeploymentSettings`: `min_replicas` and `max_replicas`, and thresholds of
    autoscaling; the other settings stay.
    Returns at once; `settled` says when it is done. ROLLOUT_ACTIVE: both slots are compared
    at one size. INVALID_INPUT for numbers that do not fit.
    """
    low, high = given.get("min_replicas"), given.get("max_replicas")

    def changed(settings: DeploymentSettings) -> DeploymentSettings:
        count = settings.replicas if replicas is None else replicas
        if low is not None and high is not None:
            count = min(max(count, low), high)
        return replace(
            settings, **{"min_replicas": None, "max_replicas": None, **given, "replicas": count}
        )

    with Journal(paths.journal()) as journal:
        if journal.live_deployment(name).settings.kubernetes is not None:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{name!r} runs in a cluster, where its Deployments say how many pods there are",
                "Scale them there: `kubectl scale`.",
            )
        active = journal.active(name)
        if active is not None:
            raise MlctlError(
                ErrorCode.ROLLOUT_ACTIVE,
                f"a rollout of {name!r} to {active.candidate.bento} is under way: both "
                "revisions are compared at the same number of replicas",
                "Scale when it has ended.",
            )
        journal.resize(name, changed, "requested")
        ensure_daemon(journal, name)
        return journal.deployment(name)


def settled(name: str) -> bool:
    """Whether exactly the wanted replicas of the live revision run, all of them ready."""
    with Journal(paths.journal()) as journal:
        deployment = journal.live_deployment(name)
        found = slot_rows(journal, deployment, deployment.slot)
        return len(found) == deployment.settings.replicas and all(row.healthy for row in found)
