"""Change the number of replicas of a deployment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bundle.errors import ErrorCode, MlctlError
from rollout.client.lifecycle import ensure_daemon
from rollout.client.process_table import slot_rows
from rollout.domain.spec import DeploymentSettings
from rollout.journal import paths
from rollout.journal.journal import Journal
from rollout.journal.records import Deployment


def scale(
    name: str,
    replicas: int | None = None,
    *,
    min_replicas: int | None = None,
    max_replicas: int | None = None,
    idle_seconds: float | None = None,
    target_queue_rows: int | None = None,
    cooldown_seconds: float | None = None,
) -> Deployment:
    """Request `replicas` and no autoscaling, or autoscaling from `min_replicas` to `max_replicas`.

    The other settings stay where None is given.
    Returns at once; `settled` says when it is done. ROLLOUT_ACTIVE: both slots are compared
    at one size. INVALID_INPUT for numbers that do not fit.
    """

    values = {
        "idle_seconds": idle_seconds,
        "target_queue_rows": target_queue_rows,
        "cooldown_seconds": cooldown_seconds,
    }
    given: dict[str, Any] = {name: value for name, value in values.items() if value is not None}

    def changed(settings: DeploymentSettings) -> DeploymentSettings:
        count = settings.replicas if replicas is None else replicas
        if min_replicas is not None and max_replicas is not None:
            count = min(max(count, min_replicas), max_replicas)
        return replace(
            settings,
            replicas=count,
            min_replicas=min_replicas,
            max_replicas=max_replicas,
            **given,
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
