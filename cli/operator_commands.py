"""Send an operator command to the daemon of a deployment, and show its result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bundle.errors import ErrorCode, MlctlError
from cli.output import CommandOutput

if TYPE_CHECKING:
    from rollout.domain.operator_commands import OperatorCommand


def send_command(output: CommandOutput, name: str, command: OperatorCommand, reason: str) -> None:
    """Send a command, wait until the daemon applied it, and show its event."""
    from rollout.client import deployments
    from rollout.client.rendering import event_line

    event = deployments.send_command(name, command, reason)
    output.result({"name": name, "rollout": event.rollout, **event.body}, event_line(event) or "")


def roll_back(output: CommandOutput, name: str, reason: str) -> None:
    """Request a rollback, and follow it until it ends."""
    from rollout.client import deployments
    from rollout.client.rendering import event_line, rollout_document, verdict_text

    rollout = deployments.rollback(name, reason)
    reverts = rollout.reverts is not None
    serves, leaves = (
        (rollout.candidate.bento, rollout.live.bento)
        if reverts
        else (rollout.live.bento, rollout.candidate.bento)
    )
    restored: dict[str, object] = {}
    for event in deployments.follow(name, rollout.id):
        if event.body.get("cold"):
            output.note(f"{serves} is no longer running: it is started first.")
        if event.kind == "traffic_restored":
            restored = dict(event.body)
        if event.kind in ("traffic_restored", "champion_failed") and not output.as_json:
            output.line(event_line(event) or "")
    ended = next(each for each in deployments.history(name) if each.id == rollout.id)
    if reverts and not (ended.outcome and ended.outcome.replaces_live):
        verdict = rollout_document(ended)["verdict"]
        raise MlctlError(
            ErrorCode.NOT_READY,
            f"{serves} could not take the traffic: {verdict_text(verdict)}",
            f"{leaves} still serves it. `mlctl logs {name}` shows why.",
        )
    if not restored:
        raise MlctlError(
            ErrorCode.DEPLOYMENT_NOT_FOUND, f"{name} was stopped before the traffic was restored"
        )
    output.result(
        {"name": name, "rollout": rollout.id, "serves": serves, **restored},
        f"{name} serves {serves}; {leaves} is taken back",
    )
