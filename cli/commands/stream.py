"""`mlctl stream`: score an unbounded stream with the model of a Bento, and inspect streams."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlctl.cli.options import takes
from mlctl.cli.output import CommandOutput, counted, reporting
from mlctl.cli.progress import json_line, stopping
from mlctl.cli.runners.stream import score_stream
from mlctl.cli.runners.stream_options import StreamRunOptions

if TYPE_CHECKING:
    from mlctl.services.stream.base import Message, StreamUrl, Transport


@click.group()
def stream() -> None:
    """Score a stream of messages with a Bento's model."""


@stream.command()
@click.argument("bento")
@takes(options=StreamRunOptions)
@reporting(json_lines=True)
def run(output: CommandOutput, /, bento: str, options: StreamRunOptions) -> None:
    """Score the messages of --in with BENTO, a Bento's tag or a bundle's folder, into --out.

    The first line of output is the guarantee. Several runs with the same --group share the work.
    Ctrl-C or SIGTERM commits the batch that was begun; uncommitted messages are delivered again.
    A URL is SCHEME://ADDRESS#TOPIC, such as sqlite://events.db#orders, a file of JSON lines, or -
    for standard input and output. JSON answers can also go to a table, postgresql://HOST/DB?table=T
    or sqlite://FILE?table=T, or to a webhook, https://HOST/PATH.
    """
    from mlctl.services.layout.scorable import find_scorable

    score_stream(output, partial(find_scorable, bento), options)


@stream.command()
@click.argument("url")
@click.option("--in", "source", help="File of lines to send.  [default: standard input]")
@click.option("--key-field", "key", help="Field of each JSON object that is the message's key.")
@reporting
def send(output: CommandOutput, /, url: str, source: str | None, key: str | None) -> None:
    """Send lines to URL, each as one message.

    URL is SCHEME://ADDRESS#TOPIC, such as sqlite://events.db#orders.
    """
    from mlctl.services.stream.base import StreamUrl
    from mlctl.services.stream.tools import send as send_lines

    target = StreamUrl.parse(url)
    path = None if source in (None, "-") else Path(str(source))
    with stopping(output) as stop, output.working() as show:
        sent = send_lines(target, path, stop, key=key, on_progress=lambda n: show(f"{n:,} sent"))
    if output.as_json:
        output.document({"url": target.redacted(), "sent": sent})
    else:
        output.note(f"{counted(sent, 'message')} sent to {target.redacted()}")


@stream.command()
@click.argument("url")
@click.option(
    "-n",
    "--last",
    "count",
    type=click.IntRange(1),
    default=10,
    help="Messages to show.",
)
@reporting(json_lines=True)
def peek(output: CommandOutput, /, url: str, count: int) -> None:
    """Show the last messages of URL, oldest first, with their headers.

    Nothing is removed. The headers of dead letters say why they could not be answered.
    """
    source, transport = _open(url)
    _show_messages(output, transport.browse(source, last=count))


@stream.command()
@click.argument("url")
@reporting
def groups(output: CommandOutput, /, url: str) -> None:
    """List the consumer groups of URL, for which retention keeps messages."""
    source, transport = _open(url)
    found = transport.status(source, "mlctl").groups
    if output.as_json:
        listed = [
            {"group": g.name, "lag": g.lag, "members": g.members, "idle_s": g.idle_s}
            for g in found or ()
        ]
        output.document({"url": source.redacted(), "groups": listed})
        return
    if found is None:
        output.line(f"retention of {source.scheme} streams does not wait for consumer groups")
        return
    rows = [
        (
            each.name,
            "" if each.lag is None else f"{each.lag:,}",
            f"{each.members:,}",
            "" if each.idle_s is None else f"{each.idle_s:,.0f} s",
        )
        for each in found
    ]
    output.table(["group", "lag>", "members>", "idle>"], rows)


@stream.command()
@click.argument("url")
@click.option("--group", required=True, help="Consumer group that no run uses any more.")
@reporting
def forget(output: CommandOutput, /, url: str, group: str) -> None:
    """Delete the position of a consumer group, so that retention keeps no messages for it.

    A later run with that --group begins as a new group. Rejected while the group has a consumer.
    """
    source, transport = _open(url)
    transport.forget_group(source, group)
    output.result(
        {"url": source.redacted(), "forgotten": group},
        f"removed group {group!r} of {source.redacted()}",
    )


@stream.command()
@click.argument("letters", metavar="URL")
@click.option("--to", "target", required=True, help="Stream that the messages came from.")
@reporting
def redrive(output: CommandOutput, /, letters: str, target: str) -> None:
    """Send the dead letters at URL again, without the headers that the run added.

    Each is sent once, however often you run this, if both streams are at one broker with
    exactly-once commits. Messages that become dead letters again are left for the next call.
    """
    from mlctl.services.stream.base import StreamUrl
    from mlctl.services.stream.tools import redrive as send_again

    source, to = StreamUrl.parse(letters), StreamUrl.parse(target)
    with stopping(output) as stop, output.working() as show:
        sent = send_again(source, to, stop, lambda count: show(f"{count:,} sent again"))
    output.result(
        {"from": source.redacted(), "to": to.redacted(), "sent": sent},
        f"{counted(sent, 'dead letter')} sent to {to.redacted()}",
    )


@stream.command()
@click.argument("url")
@click.option("--group", default="mlctl", help="Show the lag of this group.")
@reporting
def doctor(output: CommandOutput, /, url: str, group: str) -> None:
    """Connect to URL; show what its broker guarantees, and the group's lag by partition."""
    stream_url, transport = _open(url)
    found = transport.status(stream_url, group)
    total = None if found.lag is None else sum(found.lag.values())
    if output.as_json:
        output.document(
            {
                "url": stream_url.redacted(),
                "server": found.server,
                "guarantee": found.guarantee.value,
                "messages": found.messages,
                "group": group,
                "lag": found.lag,
                "total": total,
                "remarks": found.remarks,
            }
        )
        return
    output.marked("ok", "green", "server", found.server)
    output.marked("ok", "green", "guarantee", found.guarantee.value)
    if found.messages is not None:
        output.marked("ok", "green", "messages", f"{found.messages:,}")
    if found.lag is None:
        output.marked("-", "dim", "lag", f"there is no consumer group {group!r}")
    else:
        output.marked("ok", "green", "lag", f"{total:,} messages not answered by group {group!r}")
        for name, count in found.lag.items():
            output.marked("", "dim", f"  partition {name}", f"{count:,}")
    for remark in found.remarks:
        output.marked("-", "dim", "", remark)


def _open(url: str) -> tuple[StreamUrl, Transport]:
    """Parse a URL; return it with its transport."""
    from mlctl.services.stream.base import StreamUrl
    from mlctl.services.stream.transports import transport_of

    found = StreamUrl.parse(url)
    return found, transport_of(found)


def _show_messages(output: CommandOutput, messages: Iterable[Message]) -> None:
    from mlctl.services.stream.tools import as_document, as_lines

    for message in messages:
        if output.as_json:
            json_line(as_document(message))
            continue
        for line in as_lines(message):
            output.line(line)
