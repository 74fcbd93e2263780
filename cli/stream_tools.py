"""`mlctl stream send`, `peek`, `tail`, `lag`, `forget` and `redrive`: a stream by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from cli.output import CommandOutput, counted, reporting
from cli.progress import json_line, stopping

if TYPE_CHECKING:
    from services.stream.base import Message


@click.command()
@click.argument("place")
@click.option("--in", "source", help="File of lines to send.  [default: standard input]")
@click.option("--key-field", "key", help="The field of each JSON object that is the message's key.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Messages a second, at most.")
@reporting
def send(
    output: CommandOutput, /, place: str, source: str | None, key: str | None, rate: float | None
) -> None:
    """Send lines to PLACE, each as one message.

    PLACE is SCHEME://ADDRESS#TOPIC, such as sqlite://events.db#orders.
    """
    from pathlib import Path

    from services.stream.base import StreamUrl
    from services.stream.tools import send as send_lines

    to = StreamUrl.parse(place)
    path = None if source in (None, "-") else Path(str(source))
    with stopping(output) as stop, output.working() as show:
        sent = send_lines(
            to, path, stop, key=key, rate=rate, told=lambda count: show(f"{count:,} sent")
        )
    if output.as_json:
        output.document({"place": to.shown(), "sent": sent})
    else:
        output.note(f"{counted(sent, 'message')} sent to {to.shown()}")


@click.command()
@click.argument("place")
@click.option(
    "-n",
    "--last",
    "count",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Number of messages.",
)
@reporting(json_lines=True)
def peek(output: CommandOutput, /, place: str, count: int) -> None:
    """Show the last messages of PLACE, oldest first, with their headers.

    Nothing is taken from it. Of dead letters the headers say what is wrong with them.
    """
    from services.stream.base import StreamUrl
    from services.stream.tools import browsable

    where = StreamUrl.parse(place)
    _show(output, browsable(where).browse(where, last=count))


@click.command()
@click.argument("place")
@reporting(json_lines=True)
def tail(output: CommandOutput, /, place: str) -> None:
    """Show the messages that come to PLACE from now on, until Ctrl-C."""
    from services.stream.base import StreamUrl
    from services.stream.tools import browsable

    where = StreamUrl.parse(place)
    with stopping(output) as stop:
        for message in browsable(where).follow(where, 0.5):
            if message is not None:
                _show(output, [message])
            if stop.is_set():
                return


@click.command()
@click.argument("place")
@click.option("--group", default="mlctl", show_default=True, help="The consumers of a stream.")
@reporting
def lag(output: CommandOutput, /, place: str, group: str) -> None:
    """Show how many messages of PLACE a group has not answered yet, by partition."""
    from services.stream.base import StreamUrl
    from services.stream.tools import browsable

    where = StreamUrl.parse(place)
    found = browsable(where).examine(where, group)
    total = None if found.lag is None else sum(found.lag.values())
    if output.as_json:
        output.document(
            {
                "place": where.shown(),
                "group": group,
                "messages": found.messages,
                "lag": None if found.lag is None else dict(found.lag),
                "total": total,
            }
        )
        return
    if found.lag is None:
        output.line(f"nothing is known of a group {group!r} there")
        return
    output.table(["partition", "lag>"], [(name, f"{n:,}") for name, n in found.lag.items()])
    held = "" if found.messages is None else f", {found.messages:,} messages are there"
    output.line(f"{total:,} behind{held}")


@click.command()
@click.argument("place")
@click.option("--group", required=True, help="The group that no run uses any more.")
@reporting
def forget(output: CommandOutput, /, place: str, group: str) -> None:
    """Delete the position of a group, so that retention no longer keeps messages for it.

    A later run with that --group is a new group. It is rejected while the group has a consumer.
    """
    from services.stream.base import StreamUrl
    from services.stream.tools import forget as forget_group

    where = StreamUrl.parse(place)
    forget_group(where, group)
    if output.as_json:
        output.document({"place": where.shown(), "forgotten": group})
    else:
        output.line(f"group {group!r} of {where.shown()} is forgotten")


@click.command()
@click.argument("letters", metavar="PLACE")
@click.option("--to", "target", required=True, help="The stream that they came from.")
@reporting
def redrive(output: CommandOutput, /, letters: str, target: str) -> None:
    """Send the dead letters at PLACE again: as they were, without the headers that we added.

    Each is sent once, however often this is run, where both places are at one broker that can
    do it. What dies again meanwhile is left for the next time.
    """
    from services.stream.base import StreamUrl
    from services.stream.tools import redrive as send_again

    source, to = StreamUrl.parse(letters), StreamUrl.parse(target)
    with stopping(output) as stop, output.working() as show:
        sent = send_again(source, to, stop, lambda count: show(f"{count:,} sent again"))
    if output.as_json:
        output.document({"from": source.shown(), "to": to.shown(), "sent": sent})
    else:
        output.line(f"{counted(sent, 'dead letter')} sent to {to.shown()}")


def _show(output: CommandOutput, messages: Iterable[Message]) -> None:
    from services.stream.tools import as_document, as_lines

    for message in messages:
        if output.as_json:
            json_line(as_document(message))
            continue
        for line in as_lines(message):
            output.line(line)
