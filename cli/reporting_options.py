"""The options of `up` for metrics, webhooks, runs and predictions, and how they are shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from cli.options import Duration
from cli.output import CommandOutput

if TYPE_CHECKING:
    from rollout.client.links import Links
    from rollout.daemon.reporting.projection import RunLink
    from rollout.domain.spec import DeploymentSettings

_OPTIONS = (
    click.option(
        "--metrics-port",
        type=click.IntRange(1, 65535),
        help="Serve Prometheus metrics on this port of 127.0.0.1.",
    ),
    click.option(
        "--webhook",
        "webhooks",
        multiple=True,
        metavar="URL",
        envvar="MLCTL_WEBHOOKS",
        help="Send each event to this URL; repeatable.",
    ),
    click.option("--no-runs", is_flag=True, help="Do not record rollouts as MLflow runs."),
    click.option(
        "--record-share",
        type=click.FloatRange(0, 1),
        default=0.0,
        show_default=True,
        help="Share of the requests whose predictions are recorded for `mlctl feedback`.",
    ),
    click.option(
        "--keep-predictions",
        "keep_predictions_seconds",
        type=Duration("1s"),
        default="7d",
        show_default=True,
        help="How long recorded predictions wait for their labels.",
    ),
)


def reporting_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options above."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def reporting_settings(
    options: dict[str, Any],
) -> Callable[[DeploymentSettings], DeploymentSettings]:
    """Remove these options from `options`; return a function that puts them into settings."""
    metrics_port, webhooks = options.pop("metrics_port"), options.pop("webhooks")
    no_runs = options.pop("no_runs")
    recorded = {name: options.pop(name) for name in ("record_share", "keep_predictions_seconds")}

    def apply(settings: DeploymentSettings) -> DeploymentSettings:
        if settings.kubernetes is not None and recorded["record_share"]:
            raise click.UsageError("--record-share: predictions are not recorded in a cluster")
        settings = replace(settings, metrics_port=metrics_port, webhooks=webhooks, **recorded)
        return replace(settings, runs=()) if no_runs else settings

    return apply


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
