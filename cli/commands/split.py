"""`mlctl split`: a lasting A/B split of the traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mlctl.cli.output import CommandOutput, reporting

if TYPE_CHECKING:
    from mlctl.rollout.domain.spec import Revision


@click.command()
@click.argument("name")
@click.argument("shares", metavar="[BENTO=PERCENT BENTO=PERCENT]", nargs=-1)
@click.option("--sticky", is_flag=True, help="A client keeps its version.")
@click.option("--end", "ending", is_flag=True, help="End the split; the live version stays.")
@click.option(
    "--winner", metavar="BENTO", help="With --end: the version that gets all the traffic."
)
@reporting
def split(
    output: CommandOutput,
    name: str,
    shares: tuple[str, ...],
    *,
    sticky: bool,
    ending: bool,
    winner: str | None,
) -> None:
    """Split the traffic of NAME between two versions, until you end it.

    One of them is the live version. No gate judges the split: it lasts through restarts until
    --end. `mlctl status NAME` shows both versions and the difference of their latency and errors.
    The same command with other shares changes them. --end --winner BENTO gives all the traffic to
    one of the two.
    """
    from mlctl.rollout.client import split as splits
    from mlctl.rollout.client.revisions import find_revision

    if ending:
        if shares or sticky:
            raise click.UsageError("--end takes no shares and no --sticky")
        _end(output, name, None if winner is None else find_revision(winner))
        return
    if winner is not None:
        raise click.UsageError("--winner needs --end")
    if not shares:
        raise click.UsageError(
            "give the shares of two Bentos, such as digits:3f2a=90 digits:77ab=10"
        )
    found = {find_revision(bento): percent for bento, percent in map(_share, shares)}
    output.note(f"Starting what does not run yet of {name} ...")
    deployment = splits.split(name, found, sticky=sticky)
    if output.as_json:
        document = {revision.bento: percent for revision, percent in found.items()}
        output.document({"name": name, "split": document, "sticky": sticky})
        return
    words = ", ".join(f"{revision.bento} {percent} %" for revision, percent in found.items())
    output.line(f"{deployment.name} serves {words}")


def _share(text: str) -> tuple[str, int]:
    bento, separator, percent = text.rpartition("=")
    if not (separator and bento and percent.isdecimal()):
        raise click.UsageError(f"{text}: write a share as BENTO=PERCENT")
    return bento, int(percent)


def _end(output: CommandOutput, name: str, keep: Revision | None) -> None:
    from mlctl.rollout.client import deployments
    from mlctl.rollout.client import split as splits

    rollout = splits.end(name, keep)
    if rollout is not None:
        for _ in deployments.follow(name, rollout):
            pass
    (found,) = deployments.status(name)
    bento = found.deployment.live.bento
    output.result(
        {"name": name, "serves": bento, "rollout": rollout},
        f"{name} serves {bento}; the split has ended",
    )
