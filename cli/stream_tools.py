"""`mlctl stream send`, `peek`, `tail`, `lag`, `groups`, `forget` and `redrive`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from cli.output import CommandOutput, counted, reporting
from cli.progress import json_line, stopping

if TYPE_CHECKING:
    from services.stream.base import Message


@click.command()
@click.argument("url")
@click.option("--in", "source", help="File of lines to send.  [default: standard input]")
@click.option("--key-field", "key", help="Field of each JSON object that is the message's key.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Maximum messages a second.")
@reporting
def send(
    output: CommandOutput, /, url: str, source: str | None, key: str | None, rate: float | None
) -> None:
    """Send lines to URL, each as one message.

    URL is SCHEME://ADDRESS#TOPIC, such as sqlite://events.db#orders.
    """
    from pathlib import Path

    from services.stream.base import StreamUrl
    from services.stream.tools import send as send_lines

    target = StreamUrl.parse(url)
    path = None if source in (None, "-") else Path(str(source))
    with stopping(output) as stop, output.working() as show:
        sent = send_lines(
            target, path, stop, key=key, rate=rate, on_progress=lambda n: show(f"{n:,} sent")
        )
    if output.as_json:
        output.document({"url": target.redacted(), "sent": sent})
    else:
        output.note(f"{counted(sent, 'message')} sent to {target.redacted()}")


@click.command()
@click.argument("url")
@click.option(
    "-n",
    "--last",
    "count",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Messages to show.",
)
@reporting(json_lines=True)
def peek(output: CommandOutput, /, url: str, count: int) -> None:
    """Show the last messages of URL, oldest first, with their headers.

    Nothing is removed. The headers of dead letters say why they could not be answered.
    """
    from services.stream.base import StreamUrl
    from services.stream.transports import transport_of

    source = StreamUrl.parse(url)
    _show(output, transport_of(source).browse(source, last=count))


@click.command()
@click.argument("url")
@reporting(json_lines=True)
def tail(output: CommandOutput, /, url: str) -> None:
    """Show new messages of URL, until Ctrl-C."""
    from services.stream.base import StreamUrl
    from services.stream.transports import transport_of

    source = StreamUrl.parse(url)
    with stopping(output) as stop:
        for message in transport_of(source).follow(source, 0.5):
            if message is not None:
                _show(output, [message])
            if stop.is_set():
                return


@click.command()
@click.argument("url")
@click.option("--group", default="mlctl", show_default=True, help="Consumer group.")
@reporting
def lag(output: CommandOutput, /, url: str, group: str) -> None:
    """Show how many messages of URL a group has not answered, by partition."""
    from services.stream.base import StreamUrl
    from services.stream.transports import transport_of

    source = StreamUrl.parse(url)
    found = transport_of(source).status(source, group)
    total = None if found.lag is None else sum(found.lag.values())
    if output.as_json:
        output.document(
            {
                "url": source.redacted(),
                "group": group,
                "messages": found.messages,
                "lag": None if found.lag is None else dict(found.lag),
                "total": total,
            }
        )
        return
    if found.lag is None:
        output.line(f"no consumer group {group!r}")
        return
    output.table(["partition", "lag>"], [(name, f"{n:,}") for name, n in found.lag.items()])
    stored = "" if found.messages is None else f" of {found.messages:,} stored messages"
    output.line(f"{total:,}{stored} not answered by group {group!r}")


@click.command()
@click.argument("url")
@reporting
def groups(output: CommandOutput, /, url: str) -> None:
    """List the consumer groups of URL, for which retention keeps messages."""
    from services.stream.base import StreamUrl
    from services.stream.transports import transport_of

    source = StreamUrl.parse(url)
    found = transport_of(source).status(source, "mlctl").groups
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


@click.command()
@click.argument("url")
@click.option("--group", required=True, help="Consumer group that no run uses any more.")
@reporting
def forget(output: CommandOutput, /, url: str, group: str) -> None:
    """Delete the position of a consumer group, so that retention keeps no messages for it.

    A later run with that --group begins as a new group. Rejected while the group has a consumer.
    """
    from services.stream.base import StreamUrl
    from services.stream.transports import transport_of

    source = StreamUrl.parse(url)
    transport_of(source).forget_group(source, group)
    if output.as_json:
        output.document({"url": source.redacted(), "forgotten": group})
    else:
        output.line(f"removed group {group!r} of {source.redacted()}")


@click.command()
@click.argument("letters", metavar="URL")
@click.option("--to", "target", required=True, help="Stream that the messages came from.")
@reporting
def redrive(output: CommandOutput, /, letters: str, target: str) -> None:
    """Send the dead letters at URL again, without the headers that the run added.

    Each is sent once, however often you run this, if both streams are at one broker with
    exactly-once commits. Messages that become dead letters again are left for the next call.
    """
    from services.stream.base import StreamUrl
    from services.stream.tools import redrive as send_again

    source, to = StreamUrl.parse(letters), StreamUrl.parse(target)
    with stopping(output) as stop, output.working() as show:
        sent = send_again(source, to, stop, lambda count: show(f"{count:,} sent again"))
    if output.as_json:
        output.document({"from": source.redacted(), "to": to.redacted(), "sent": sent})
    else:
        output.line(f"{counted(sent, 'dead letter')} sent to {to.redacted()}")


def _show(output: CommandOutput, messages: Iterable[Message]) -> None:
    from services.stream.tools import as_document, as_lines

    for message in messages:
        if output.as_json:
            json_line(as_document(message))
            continue
        for line in as_lines(message):
            output.line(line)
