"""`mlctl history`: all rollouts of a deployment, and the live revision at any time."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

import click

from mlctl.cli.output import CommandOutput, reporting

if TYPE_CHECKING:
    from mlctl.rollout.journal.history import Moment


def _moment(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    """Wall-clock seconds; a time without a zone is local."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError):
        raise click.BadParameter("give a time such as 2026-05-01T14:30 or 2026-05-01") from None


@click.command()
@click.argument("name")
@click.option(
    "--at",
    "moment",
    metavar="TIME",
    callback=_moment,
    help="Show the revision that was live at this time.",
)
@reporting
def history(output: CommandOutput, name: str, moment: float | None) -> None:
    """List the rollouts of deployment NAME, newest first.

    Each has its final verdict. With --at, show the revision that was live at that time, and the
    candidate's share if a rollout was under way.
    """
    from mlctl.rollout.client import deployments
    from mlctl.rollout.journal.history import at

    if moment is None:
        _show_all(output, name)
    else:
        rollouts = deployments.history(name)
        _show_moment(output, name, at(moment, deployments.events(name, ticks=False), rollouts))


def _show_all(output: CommandOutput, name: str) -> None:
    from mlctl.cli.links import run_document
    from mlctl.rollout.client import deployments
    from mlctl.rollout.client.links import links
    from mlctl.rollout.client.rendering import local_time, rollout_document, verdict_text
    from mlctl.rollout.journal.history import intervals

    rollouts = deployments.history(name)
    documents = [rollout_document(each) for each in rollouts]
    if output.as_json:
        runs = links(name).runs
        for document in documents:
            document["run"] = run_document(runs.get(document["id"]))
        known = deployments.events(name, ticks=False)
        live = [asdict(each) for each in intervals(known, rollouts)]
        output.document({"name": name, "rollouts": documents, "live": live})
    elif not documents:
        output.note(f"{name} has had no rollout yet.")
    else:
        output.table(
            ("Rollout>", "When", "From", "To", "Outcome", "Verdict"),
            (
                (
                    str(each["id"]),
                    local_time(each["created"]),
                    each["live"]["bento"],
                    each["candidate"]["bento"],
                    each["outcome"] or f"under way ({each['phase']})",
                    verdict_text(each["verdict"]) if each["verdict"] else "",
                )
                for each in documents
            ),
        )


def _show_moment(output: CommandOutput, name: str, moment: Moment) -> None:
    from mlctl.rollout.client.rendering import local_time

    live, candidate = moment.live, moment.candidate
    if output.as_json:
        share = None if candidate is None else asdict(candidate)
        output.document({"name": name, "live": asdict(live) if live else None, "candidate": share})
    elif live is None:
        output.line(f"nothing of {name} was in production then")
    else:
        end = "now" if live.end is None else local_time(live.end)
        by = "mlctl up" if live.rollout is None else f"rollout {live.rollout}"
        output.line(f"{live.bento} (digest {live.digest[:12]}) by {by}")
        output.line(f"live from {local_time(live.start)} to {end}")
        if candidate is not None:
            output.line(
                f"{candidate.bento} had {candidate.weight} % in {candidate.phase} of rollout "
                f"{candidate.rollout}"
            )
