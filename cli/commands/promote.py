"""`mlctl promote`: move the traffic to another Bento, step by step, under gates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from bundle.errors import ErrorCode, MlctlError
from cli.output import Output, reporting

if TYPE_CHECKING:
    from rollout.records import Event


def _steps(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter("give whole percents, such as 1,5,25,50,100") from None


@click.command()
@click.argument("name")
@click.argument("bento")
@click.option(
    "--steps",
    default="1,5,25,50,100",
    show_default=True,
    callback=_steps,
    help="Percents of the traffic, rising to 100.",
)
@click.option("--step-seconds", type=float, default=10.0, show_default=True, help="Least per step.")
@click.option("--min-requests", type=int, default=50, show_default=True, help="Least per step.")
@click.option("--max-p99-ms", type=float, help="At most 1 % of the requests may be slower.")
@click.option(
    "--max-error-rate",
    type=float,
    default=0.01,
    show_default=True,
    help="Largest share of the requests that may fail.",
)
@click.option(
    "--alpha",
    type=float,
    default=0.05,
    show_default=True,
    help="Chance of rolling back a good model, over the whole rollout.",
)
@click.option(
    "--bake-seconds",
    type=float,
    default=30.0,
    show_default=True,
    help="Least time at 100 % before the previous model is stopped.",
)
@click.option(
    "--deadline",
    "deadline_seconds",
    type=float,
    default=3600.0,
    show_default=True,
    help="Seconds after which a rollout that is not proved ends as inconclusive.",
)
@click.option("--detach", is_flag=True, help="Only ask for it; follow with `mlctl status NAME`.")
@reporting
def promote(output: Output, /, name: str, bento: str, detach: bool, **limits: Any) -> None:
    """Move the traffic of NAME to BENTO, step by step.

    The deployment's daemon does it; this command follows, and Ctrl-C only stops following.
    Exits 0 if promoted, 10 if rolled back, 11 if there was not enough evidence.
    """
    from cli.revisions import find_revision
    from rollout import deployments
    from rollout.model import RolloutSpec

    revision = find_revision(bento)
    rollout = deployments.promote(name, revision, RolloutSpec(**limits))
    if detach:
        _say_detached(output, name, rollout)
        return
    try:
        _follow(output, name, rollout)
    except KeyboardInterrupt:
        raise MlctlError(
            ErrorCode.INTERRUPTED,
            f"stopped following; rollout {rollout} of {name} goes on",
            f"Follow it with `mlctl status {name}`, end it with `mlctl rollback {name}`.",
        ) from None


def _say_detached(output: Output, name: str, rollout: int) -> None:
    if output.as_json:
        output.document({"name": name, "rollout": rollout})
    else:
        output.line(f"rollout {rollout} of {name} is under way: mlctl status {name}")


def _show_events(output: Output, events: Iterable[Event]) -> None:
    """One line for each event that matters; quiet looks only move the status line."""
    from cli.rollouts import event_line, is_quiet

    with output.working() as say:
        for event in events:
            line = event_line(event)
            if line is None or output.as_json:
                continue
            if is_quiet(event):
                say(line)
            else:
                output.line(line)


def _follow(output: Output, name: str, rollout: int) -> None:
    from cli.rollouts import rollout_document, verdict_text
    from rollout import deployments

    _show_events(output, deployments.follow(name, rollout))
    ended = next(each for each in deployments.history(name) if each.id == rollout)
    document = rollout_document(ended)
    outcome = document["outcome"]
    if outcome != "promoted":
        code = ErrorCode.ROLLED_BACK if outcome == "rolled_back" else ErrorCode.INCONCLUSIVE
        verdict = document["verdict"]
        raise MlctlError(code, f"{ended.candidate.bento} was not promoted: {verdict_text(verdict)}")
    if output.as_json:
        output.document({"name": name, **document})
    else:
        output.line(f"{name} serves {ended.candidate.bento}")
