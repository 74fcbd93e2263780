"""How the metrics, webhooks and MLflow runs of a deployment are shown."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mlctl.cli.output import CommandOutput

if TYPE_CHECKING:
    from mlctl.rollout.client.links import Links
    from mlctl.rollout.daemon.reporting.projection import RunLink


def links_document(links: Links) -> dict[str, Any]:
    """Return the metrics URL and webhooks of a deployment for --json, without webhook paths."""
    return {
        "metrics": links.metrics,
        "alias_error": links.alias_error,
        "webhooks": [asdict(webhook) for webhook in links.webhooks],
    }


def run_document(link: RunLink | None) -> dict[str, Any] | None:
    """Return a rollout's MLflow run for --json."""
    return None if link is None else asdict(link)


def show_links(output: CommandOutput, links: Links, rollout: int | None) -> None:
    """Print the metrics URL, failing webhooks, and the MLflow run."""
    if links.metrics is not None:
        output.line(f"  metrics  {links.metrics}")
    if links.alias_error is not None:
        output.line(f"  alias    not written: {links.alias_error}; retrying")
    for webhook in links.webhooks:
        if webhook.failures:
            failed = f"{webhook.failures} failures in a row: {webhook.error}"
            output.line(f"  webhook  {webhook.host} {failed}")
    run = None if rollout is None else links.runs.get(rollout)
    if run is None:
        return
    if run.error is not None:
        output.line(f"  run      not recorded in MLflow: {run.error}; retrying")
    elif run.run is not None:
        output.line(f"  run      {run.url or run.run}")
