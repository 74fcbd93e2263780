"""Send an operator command to the daemon of a deployment, and show its result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlctl.cli.output import CommandOutput

if TYPE_CHECKING:
    from mlctl.rollout.domain.operator_commands import OperatorCommand


def send_command(output: CommandOutput, name: str, command: OperatorCommand, reason: str) -> None:
    """Send a command, wait until the daemon applied it, and show its event."""
    from mlctl.rollout.client import deployments
    from mlctl.rollout.client.rendering import event_line

    event = deployments.send_command(name, command, reason)
    output.result({"name": name, "rollout": event.rollout, **event.body}, event_line(event) or "")
