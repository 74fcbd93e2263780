"""`mlctl stream`: score an unbounded stream with the model of a Bento."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from cli.output import CommandOutput, reporting
from cli.runners.stream import score_stream
from cli.runners.stream_options import stream_options
from cli.stream_compare import compare
from cli.stream_tools import forget, groups, lag, peek, redrive, send, tail


@click.group()
def stream() -> None:
    """Score a stream of messages with a Bento's model."""


@stream.command()
@click.argument("bento")
@stream_options
@reporting(json_lines=True)
def run(output: CommandOutput, /, bento: str, **given: Any) -> None:
    """Score the messages of --in with BENTO, a Bento's tag or a bundle's folder, into --out.

    The first line of output is the guarantee. Several runs with the same --group share the work.
    Ctrl-C or SIGTERM commits the batch that was begun; uncommitted messages are delivered again.
    A URL is SCHEME://ADDRESS#TOPIC, such as sqlite://events.db#orders, a file of JSON lines, or -
    for standard input and output.
    """
    from services.runtime.scorable import find_scorable

    score_stream(output, partial(find_scorable, bento), given)


@stream.command()
@click.argument("url")
@click.option("--group", default="mlctl", show_default=True, help="Show the lag of this group.")
@reporting
def doctor(output: CommandOutput, /, url: str, group: str) -> None:
    """Connect to URL; show what its broker guarantees, and the group's lag."""
    from services.stream.base import StreamUrl
    from services.stream.transports import transport_of

    stream_url = StreamUrl.parse(url)
    found = transport_of(stream_url).status(stream_url, group)
    behind = None if found.lag is None else sum(found.lag.values())
    if output.as_json:
        output.document(
            {
                "url": stream_url.redacted(),
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


for _command in (send, peek, tail, lag, groups, forget, redrive, compare):
    stream.add_command(_command)
