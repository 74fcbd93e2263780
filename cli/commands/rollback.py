"""`mlctl rollback`: return all traffic to the previous version."""

from __future__ import annotations

import time

import click

from mlctl.cli.output import CommandOutput, reporting
from mlctl.core.errors import ErrorCode, MlctlError


@click.command()
@click.argument("name")
@click.option("--reason", default="by operator", help="Reason for the history.")
@reporting
def rollback(output: CommandOutput, name: str, reason: str) -> None:
    """Return all traffic of NAME to the previous version at once.

    Ends the rollout in progress. After a finished promotion it takes that promotion back: the
    previous version still runs for `promote --keep-previous`, and is started first after that. The
    alias and the history follow: it says when the traffic is back, then waits for them.
    """
    from mlctl.rollout.client import deployments
    from mlctl.rollout.client.rendering import event_line, rollout_document, verdict_text

    begun = time.monotonic()
    rollout = deployments.rollback(name, reason)
    reverts = rollout.reverts is not None
    serves, leaves = (
        (rollout.candidate.bento, rollout.live.bento)
        if reverts
        else (rollout.live.bento, rollout.candidate.bento)
    )
    restored = False
    with output.working() as say:
        try:
            for event in deployments.follow(name, rollout.id):
                if event.body.get("cold"):
                    output.note(f"{serves} is no longer running: it is started first.")
                if event.kind == "traffic_restored":
                    restored, seconds = True, time.monotonic() - begun
                    output.result(
                        {"name": name, "rollout": rollout.id, "serves": serves, **event.body},
                        f"all traffic of {name} is on {serves} after {seconds:.1f} s; "
                        f"{leaves} is taken back",
                    )
                    say("Waiting until the alias is written ...")
                if event.kind == "champion_failed":
                    output.note(event_line(event) or "")
        except KeyboardInterrupt:
            if not restored:
                raise
            output.note("The daemon writes the alias.")
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
