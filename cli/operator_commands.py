"""Send an operator command to the daemon of a deployment, and show its result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bundle.errors import ErrorCode, MlctlError
from cli.output import CommandOutput

if TYPE_CHECKING:
    from rollout.domain.operator_commands import OperatorCommand


def send_command(output: CommandOutput, name: str, command: OperatorCommand, reason: str) -> None:
    """Send a command, wait until the daemon applied it, and show its event."""
    from cli.rollouts import event_line
    from rollout.client import deployments

    event = deployments.ask(name, command, reason)
    if output.as_json:
        output.document({"name": name, "rollout": event.rollout, **event.body})
    else:
        output.line(event_line(event) or "")


def roll_back(output: CommandOutput, name: str, command: OperatorCommand, reason: str) -> None:
    """Send a command that returns the traffic, and follow the rollout until it ends."""
    from cli.rollouts import event_line
    from rollout.client import deployments

    rollout = deployments.rollback(name, reason, command)
    restored: dict[str, object] = {}
    for event in deployments.follow(name, rollout):
        if event.kind == "traffic_restored":
            restored = dict(event.body)
        if event.kind in ("traffic_restored", "ended") and not output.as_json:
            output.line(event_line(event) or "")
    if not restored:
        raise MlctlError(
            ErrorCode.DEPLOYMENT_NOT_FOUND, f"{name} was stopped before the traffic was restored"
        )
    if output.as_json:
        output.document({"name": name, "rollout": rollout, **restored})
