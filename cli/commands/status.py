"""`mlctl status`: what a deployment does now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cli.output import Output, reporting

if TYPE_CHECKING:
    from rollout.deployments import Status


@click.command()
@click.argument("name", required=False)
@reporting
def status(output: Output, name: str | None) -> None:
    """Show the deployments, or one of them.

    For each its traffic, its health, and the rollout under way.
    """
    from rollout import deployments

    found = deployments.status(name)
    if output.as_json:
        output.document({"deployments": [_document(each) for each in found]})
    elif not found:
        output.note("No deployment is up: start one with `mlctl up NAME BENTO`.")
    else:
        for each in found:
            _show(output, each)


def _show(output: Output, status: Status) -> None:
    from cli.rollouts import event_line

    deployment, weights = status.deployment, status.weights
    ports = deployment.ports
    output.line(f"{deployment.name} on http://{ports.host}:{ports.listen}")
    output.line(f"  serves   {deployment.live.bento} (digest {deployment.live.digest[:12]})")
    if weights is None:
        output.line("  traffic  the proxy does not answer; it is being restarted")
    else:
        shares = ", ".join(f"{colour.value} {weight} %" for colour, weight in weights.items())
        output.line(f"  traffic  {shares}")
    down = sorted(role for role, running in status.running.items() if not running)
    output.line(f"  running  {'all processes' if not down else 'not: ' + ', '.join(down)}")
    if status.rollout is None:
        return
    rollout = status.rollout
    output.line(f"  rollout  {rollout.id} to {rollout.candidate.bento}: {rollout.progress.phase}")
    if status.last is not None and (line := event_line(status.last)):
        output.line(f"           {line}")
    output.note(f"End it with `mlctl rollback {deployment.name}`.")


def _document(status: Status) -> dict[str, Any]:
    from cli.rollouts import rollout_document

    deployment = status.deployment
    return {
        "name": deployment.name,
        "host": deployment.ports.host,
        "port": deployment.ports.listen,
        "live": {
            "bento": deployment.live.bento,
            "digest": deployment.live.digest,
            "model": deployment.live.model,
            "version": deployment.live.version,
            "colour": deployment.colour.value,
        },
        "champion": deployment.champion,
        "weights": status.weights,
        "healthy": status.healthy,
        "running": status.running,
        "rollout": rollout_document(status.rollout) if status.rollout else None,
    }
