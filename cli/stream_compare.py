"""`mlctl stream compare`: whether a shadow answers as the live run does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bundle.errors import ERROR_TABLE, ErrorCode
from cli.output import CommandOutput, reporting

if TYPE_CHECKING:
    from rollout.domain.streams import StreamsCompared


@click.command()
@click.argument("live")
@click.argument("candidate")
@click.option(
    "-n",
    "--last",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="Of each, at most.",
)
@click.option(
    "--min-agreement",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.99,
    show_default=True,
    help="The share of messages that must be answered alike.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    default=0.01,
    show_default=True,
    help="Numbers that are no class scores agree within this share of their size.",
)
@reporting
def compare(
    output: CommandOutput,
    /,
    live: str,
    candidate: str,
    last: int,
    min_agreement: float,
    tolerance: float,
) -> None:
    """Compare the answers at CANDIDATE, of a run with --shadow, with those at LIVE.

    Answers are paired by the messages that they answer, and judged as a rollout judges copies of
    requests. Exits 0 if agreement is proved, 10 if the candidate is worse, 11 if nothing is proved.
    """
    from rollout.domain.spec import RolloutSpec
    from rollout.domain.streams import judge_streams
    from services.stream.base import StreamUrl
    from services.stream.recorded import read_answered
    from services.stream.run import dead_place

    here, there = StreamUrl.parse(live), StreamUrl.parse(candidate)
    ours = read_answered(here, None, last)
    theirs = read_answered(there, dead_place(there), last)
    spec = RolloutSpec(max_disagreement=1.0 - min_agreement, tolerance=tolerance)
    found = judge_streams(ours.answers, theirs.answers, spec)
    _show(output, found, sorted(ours.digests), sorted(theirs.digests))
    action = found.verdict.action.value
    if action != "advance":
        code = ErrorCode.ROLLED_BACK if action == "rollback" else ErrorCode.INCONCLUSIVE
        raise click.exceptions.Exit(ERROR_TABLE[code].exit_code)


def _show(
    output: CommandOutput, found: StreamsCompared, live: list[str], candidate: list[str]
) -> None:
    verdict, window = found.verdict, found.window
    if output.as_json:
        output.document(
            {
                "verdict": verdict.action.value,
                "gate": verdict.gate.value,
                "why": verdict.why,
                "live": live,
                "candidate": candidate,
                "messages": window.requests,
                "differing": window.differed,
                "distance": window.distance,
                "psi": window.psi,
                "sources": list(found.differing),
                "left_out": list(found.left_out),
            }
        )
        return
    output.line(f"{verdict.action.value}: {verdict.why}")
    output.line(f"{window.requests:,} messages compared, {window.differed:,} differ")
    if found.left_out:
        output.line(f"not compared, since only one side has it: {', '.join(found.left_out)}")
    for source in found.differing:
        output.line(f"  {source}")
