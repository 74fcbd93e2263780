"""`mlctl status`: what a deployment does now, once or as a live picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from mlctl.cli.output import CommandOutput, reporting
from mlctl.cli.splits import split_document, split_lines
from mlctl.core.errors import ErrorCode, MlctlError

if TYPE_CHECKING:
    from mlctl.rollout.client.deployments import DeploymentStatus
    from mlctl.rollout.domain.spec import PreviousRevision


@click.command()
@click.argument("name", required=False)
@click.option("--watch", "-w", "watched", is_flag=True, help="Refresh until Ctrl-C.")
@reporting
def status(output: CommandOutput, name: str | None, *, watched: bool) -> None:
    """Show the deployments, or one of them.

    For each its traffic, its health, and the rollout under way. With --watch: a live picture of
    NAME, until its rollout ends or Ctrl-C, which leaves everything running; where there is no
    terminal, a line for each event of the rollout.
    """
    from mlctl.rollout.client import deployments

    if watched:
        _watch(output, name)
        return
    found = deployments.status(name)
    if output.as_json:
        output.document({"deployments": [_document(each) for each in found]})
    elif not found:
        output.note("No deployment is up: start one with `mlctl up NAME BENTO`.")
    else:
        for each in found:
            _show(output, each)


def running_line(running: Mapping[str, bool]) -> str:
    """Which of the processes, by their roles, do not run; or that all do, or none is needed."""
    from mlctl.rollout.domain.process_ref import ACTIVATOR

    down = sorted(role for role, runs in running.items() if not runs)
    if down:
        return f"not: {', '.join(down)}"
    replicas = [role for role in running if "/" in role]
    if ACTIVATOR in running and not replicas:
        return "no replica: it sleeps, and the next request wakes it"
    return "all processes"


def _watch(output: CommandOutput, name: str | None) -> None:
    if name is None or output.as_json:
        raise click.UsageError("--watch needs a NAME and takes no --json")
    try:
        if output.stdout.is_terminal:
            _draw(name)
        else:
            _follow(output, name)
    except KeyboardInterrupt:
        output.note(f"{name} goes on.")


def _draw(name: str) -> None:
    from rich.console import Console

    from mlctl.cli.live_view import watch
    from mlctl.rollout.ui import feed

    watch(Console(highlight=False), feed.watch(name))


def _follow(output: CommandOutput, name: str) -> None:
    from mlctl.rollout.client import deployments
    from mlctl.rollout.client.rendering import event_line

    (found,) = deployments.status(name)
    if found.rollout is None:
        raise MlctlError(
            ErrorCode.NOT_FOUND,
            f"no rollout of {name!r} is under way",
            "In a terminal --watch draws the deployment all the same.",
        )
    for event in deployments.follow(name, found.rollout.id):
        if line := event_line(event):
            output.line(line)


def _show(output: CommandOutput, status: DeploymentStatus) -> None:
    from mlctl.cli.links import show_links
    from mlctl.rollout.client.links import links
    from mlctl.rollout.client.rendering import accuracy_line, event_line
    from mlctl.rollout.drivers.listener import url_of

    deployment, weights = status.deployment, status.weights
    cluster = deployment.settings.kubernetes
    where = cluster.where if cluster else url_of(deployment.ports, deployment.settings)
    output.line(f"{deployment.name} on {where}")
    output.line(f"  serves   {deployment.live.bento} (digest {deployment.live.digest[:12]})")
    if deployment.previous is not None:
        output.line(f"  previous {_previous_text(deployment.previous)}")
    if weights is None:
        silent = "the cluster does not answer" if cluster else "the proxy does not answer"
        output.line(f"  traffic  {silent}; retrying")
    else:
        shares = ", ".join(f"{slot.value} {weight} %" for slot, weight in weights.items())
        output.line(f"  traffic  {shares}")
    if deployment.split is not None and status.measured is not None:
        for text in split_lines(deployment.live, deployment.split, status.measured):
            output.line(f"  {text}")
        output.note(f"End it with `mlctl split {deployment.name} --end`.")
    output.line(f"  running  {running_line(status.running)}")
    rollout_id = status.rollout.id if status.rollout else None
    show_links(output, links(deployment.name), rollout_id)
    if status.rollout is None:
        return
    rollout = status.rollout
    output.line(f"  rollout  {rollout.id} to {rollout.candidate.bento}: {rollout.progress.phase}")
    if status.last is not None and (line := event_line(status.last)):
        output.line(f"           {line}")
    if rollout.spec.min_accuracy is not None:
        output.line(f"  labels   {accuracy_line(rollout)}")
    output.note(f"End it with `mlctl rollback {deployment.name}`.")


def _previous_text(previous: PreviousRevision) -> str:
    from mlctl.rollout.client.rendering import local_time

    bento, until = previous.revision.bento, previous.warm_until
    if not until:
        return f"{bento}, stopped: a rollback starts it first"
    return f"{bento}, kept running until {local_time(until)} for `mlctl rollback`"


def _previous_document(previous: PreviousRevision | None) -> dict[str, Any] | None:
    if previous is None:
        return None
    return {
        "bento": previous.revision.bento,
        "digest": previous.revision.digest,
        "warm_until": previous.warm_until or None,
    }


def _document(status: DeploymentStatus) -> dict[str, Any]:
    from mlctl.cli.links import links_document, run_document
    from mlctl.rollout.client.links import links
    from mlctl.rollout.client.rendering import rollout_document

    deployment, rollout = status.deployment, None
    found = links(deployment.name)
    if status.rollout is not None:
        rollout = rollout_document(status.rollout)
        rollout["run"] = run_document(found.runs.get(status.rollout.id))
    return {
        "name": deployment.name,
        "host": deployment.ports.host,
        "port": deployment.ports.listen,
        "live": {
            "bento": deployment.live.bento,
            "digest": deployment.live.digest,
            "model": deployment.live.model,
            "version": deployment.live.version,
            "slot": deployment.slot.value,
        },
        "previous": _previous_document(deployment.previous),
        "split": split_document(deployment.split, status.measured),
        "champion": deployment.champion,
        "server": dict(deployment.settings.server),
        "weights": status.weights,
        "healthy": status.healthy,
        "running": status.running,
        "rollout": rollout,
        **links_document(found),
    }
