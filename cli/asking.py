"""Commands that ask the daemon for something about the rollout under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bundle.errors import ErrorCode, MlctlError
from cli.output import CommandOutput

if TYPE_CHECKING:
    from rollout.domain.operator_commands import OperatorCommand


def ask(output: CommandOutput, name: str, wish: OperatorCommand, reason: str) -> None:
    """Ask, wait until it is done, and show the event that says so."""
    from cli.rollouts import event_line
    from rollout.client import deployments

    event = deployments.ask(name, wish, reason)
    if output.as_json:
        output.document({"name": name, "rollout": event.rollout, **event.body})
    else:
        output.line(event_line(event) or "")


def take_back(output: CommandOutput, name: str, reason: str) -> None:
    """Ask for the traffic back, and follow until the rollout has ended."""
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
