"""`mlctl stream compare`: compare the answers of a shadow with those of the live run."""

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
    help="Compare this many answers of each.",
)
@click.option(
    "--min-agreement",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.99,
    show_default=True,
    help="Minimum share of messages with equal answers.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    default=0.01,
    show_default=True,
    help="Relative tolerance of numbers that are not class scores.",
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

    Answers are paired by their messages and judged as a rollout judges copied requests. Exits 0 if
    agreement is proved, 10 if the candidate is worse, 11 without enough evidence.
    """
    from rollout.domain.spec import RolloutSpec
    from rollout.domain.streams import judge_streams
    from services.stream.base import StreamUrl
    from services.stream.recorded import read_answers
    from services.stream.run import default_dead

    candidate_url = StreamUrl.parse(candidate)
    expected = read_answers(StreamUrl.parse(live), None, last)
    actual = read_answers(candidate_url, default_dead(candidate_url), last)
    spec = RolloutSpec(max_disagreement=1.0 - min_agreement, tolerance=tolerance)
    found = judge_streams(expected.answers, actual.answers, spec)
    _show(output, found, sorted(expected.digests), sorted(actual.digests))
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
        output.line(f"not compared, present on one side only: {', '.join(found.left_out)}")
    for source in found.differing:
        output.line(f"  {source}")
