"""Where else a deployment and its rollouts are seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rollout.daemon.reporting.cursors import Cursor, EventCursors, run_reader
from rollout.daemon.reporting.projection import RunLink, link
from rollout.daemon.reporting.telemetry import LOOPBACK
from rollout.daemon.reporting.webhooks import host_of, reader_of
from rollout.journal import paths
from rollout.journal.journal import Journal


@dataclass(frozen=True, slots=True)
class WebhookState:
    """How a webhook's deliveries go: `failures` in a row, and what the last one was."""

    host: str
    failures: int
    error: str | None


@dataclass(frozen=True, slots=True)
class Links:
    """`metrics` is a URL on this machine, None for none; `runs` is by rollout."""

    metrics: str | None
    webhooks: tuple[WebhookState, ...]
    runs: Mapping[int, RunLink]


def links(name: str) -> Links:
    """Those of the deployment `name`, up or down; DEPLOYMENT_NOT_FOUND."""
    with Journal(paths.journal()) as journal, EventCursors(paths.journal()) as cursors:
        settings = journal.deployment(name).settings
        rollouts = [rollout.id for rollout in journal.rollouts(name)]
        runs = {
            each: link(cursors.cursor(name, run_reader(each)), settings.tracking_uri)
            for each in rollouts
        }
        hooks = [(url, cursors.cursor(name, reader_of(url))) for url in settings.webhooks]
    port = settings.metrics_port
    return Links(
        metrics=None if port is None else f"http://{LOOPBACK}:{port}/metrics",
        webhooks=tuple(_state(url, place or Cursor()) for url, place in hooks),
        runs={each: found for each, found in runs.items() if found is not None},
    )


def _state(url: str, place: Cursor) -> WebhookState:
    return WebhookState(host_of(url), place.body.get("failures", 0), place.body.get("error"))
