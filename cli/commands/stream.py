"""`mlctl stream`: score an unbounded stream with the model of a Bento."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from bundle.errors import ErrorCode, MlctlError
from cli.output import CommandOutput, reporting
from cli.progress import stopping
from cli.stream_compare import compare
from cli.stream_options import run_options, wanted_run
from cli.stream_tools import forget, lag, peek, redrive, send, tail
from cli.streams import serving_line, show_report, watching


@click.group()
def stream() -> None:
    """Score a stream of messages with a Bento's model, as surely as its broker can."""


@stream.command()
@click.argument("bento")
@run_options
@reporting(json_lines=True)
def run(output: CommandOutput, /, bento: str, **given: Any) -> None:
    """Score the messages of --in with BENTO, a Bento's tag or a bundle's folder, into --out.

    It says first what is guaranteed if it is killed. Several of them with the same --group
    share the work. It runs until it is stopped, which commits what was begun; what was not
    comes again. A PLACE is SCHEME://ADDRESS#TOPIC, such as sqlite://events.db#orders, a file
    of JSON lines, or - for the standard streams.
    """
    from services.runtime.scorable import find_scorable
    from services.stream.metrics import counting
    from services.stream.run import run_stream

    output.warn_unknown_variables()
    wanted = wanted_run(given, as_json=output.as_json)
    model = find_scorable(bento)
    name, port = model.name, given["metrics_port"]
    with (
        stopping(output) as stop,
        watching(output) as shown,
        counting(name, port, shown, partial(serving_line, output)) as watch,
    ):
        report = run_stream(model, wanted, watch, stop, partial(shown.opened, wanted))
    show_report(output, report)
    if not report.complete and (given["until_empty"] or given["max_messages"]):
        raise MlctlError(
            ErrorCode.INTERRUPTED,
            f"stopped after {report.totals.messages} messages, all of them committed",
        )


@stream.command()
@click.argument("place")
@click.option("--group", default="mlctl", show_default=True, help="The group whose lag it is.")
@reporting
def doctor(output: CommandOutput, /, place: str, group: str) -> None:
    """Connect to PLACE, and say what its broker guarantees and how far the group is."""
    from services.stream.base import StreamUrl
    from services.stream.tools import browsable

    looked_at = StreamUrl.parse(place)
    found = browsable(looked_at).examine(looked_at, group)
    behind = None if found.lag is None else sum(found.lag.values())
    if output.as_json:
        output.document(
            {
                "place": looked_at.shown(),
                "server": found.server,
                "guarantee": found.guarantee.value,
                "messages": found.messages,
                "lag": found.lag,
                "remarks": found.remarks,
            }
        )
        return
    output.marked("ok", "green", "server", found.server)
    output.marked("ok", "green", "guarantee", found.guarantee.value)
    if found.messages is not None:
        output.marked("ok", "green", "messages", f"{found.messages:,}")
    if behind is not None:
        output.marked("ok", "green", "lag", f"{behind:,} messages of group {group!r}")
    for remark in found.remarks:
        output.marked("-", "dim", "", remark)


for _command in (send, peek, tail, lag, forget, redrive, compare):
    stream.add_command(_command)
