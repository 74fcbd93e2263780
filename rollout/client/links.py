"""Where else a deployment and its rollouts are reported."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from mlctl.rollout.daemon.reporting.alias import AliasSink
from mlctl.rollout.daemon.reporting.projection import RunLink, link
from mlctl.rollout.daemon.reporting.webhooks import host_of, notified, sink_of
from mlctl.rollout.domain.spec import LOOPBACK
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.records import run_sink


@dataclass(frozen=True, slots=True)
class WebhookState:
    """How a webhook's deliveries go: `failures` in a row, and what the last one was."""

    host: str
    failures: int
    error: str | None


@dataclass(frozen=True, slots=True)
class Links:
    """Where a deployment is reported, and how that goes.

    `metrics` is a URL on this machine, None for none; `alias_error` says why the alias of the live
    revision could not be written yet; `runs` is by rollout.
    """

    metrics: str | None
    alias_error: str | None
    webhooks: tuple[WebhookState, ...]
    runs: Mapping[int, RunLink]


def links(name: str) -> Links:
    """Return those of the deployment `name`, up or down; DEPLOYMENT_NOT_FOUND."""
    with Journal(paths.journal()) as journal:
        deployment = journal.deployment(name)
        settings, live = deployment.settings, deployment.live.digest
        rollouts = journal.rollouts(name)
        runs = {
            each.id: link(journal.delivery(name, run_sink(each.id)), settings.tracking_uri)
            for each in rollouts
        }
        alias = journal.delivery(name, AliasSink.name)
        urls = notified(settings, rollouts, time.time())
        hooks = [(url, journal.delivery(name, sink_of(url))) for url in urls]
    port = settings.metrics_port
    return Links(
        metrics=None if port is None else f"http://{LOOPBACK}:{port}/metrics",
        # What failed for another revision needs no write any more.
        alias_error=alias.error if alias.body.get("subject") == live else None,
        webhooks=tuple(
            WebhookState(host_of(url), delivery.failures, delivery.error) for url, delivery in hooks
        ),
        runs={each: found for each, found in runs.items() if found is not None},
    )
