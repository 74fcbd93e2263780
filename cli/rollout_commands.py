"""Send commands to the active rollout and show what became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bundle.errors import ErrorCode, MlctlError
from cli.output import CommandOutput

if TYPE_CHECKING:
    from rollout.domain.operator_commands import OperatorCommand


def send(output: CommandOutput, name: str, command: OperatorCommand, reason: str) -> None:
    """Send a command, wait until it is applied, and show the event that confirms it."""
    from cli.rollouts import event_line
    from rollout.client import deployments

    event = deployments.send_command(name, command, reason)
    if output.as_json:
        output.document({"name": name, "rollout": event.rollout, **event.body})
    else:
        output.line(event_line(event) or "")


def take_back(output: CommandOutput, name: str, reason: str) -> None:
    """Request a rollback and follow it to its end."""
    from cli.rollouts import event_line
    from rollout.client import deployments

    rollout = deployments.rollback(name, reason)
    restored: dict[str, object] = {}
    for event in deployments.follow(name, rollout):
        if event.kind == "traffic_restored":
            restored = dict(event.body)
        if event.kind in ("traffic_restored", "ended") and not output.as_json:
            output.line(event_line(event) or "")
    if not restored:
        raise MlctlError(
            ErrorCode.DEPLOYMENT_NOT_FOUND, f"{name} was taken down before the traffic was back"
        )
    if output.as_json:
        output.document({"name": name, "rollout": rollout, **restored})
