"""`mlctl stream`: score an unbounded stream with the model of a Bento, and inspect streams."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from bundle.errors import ERROR_TABLE, ErrorCode, MlctlError
from cli.options import Duration, add_options, parse_options
from cli.output import CommandOutput, counted, reporting
from cli.progress import json_line, only_results_on_stdout, stopping

if TYPE_CHECKING:
    from rollout.domain.streams import StreamsCompared
    from services.stream.base import Message, StreamConnection, StreamUrl, Transport
    from services.stream.engine import StreamReport
    from services.stream.events import StreamEvent
    from services.stream.run import StreamConfig

# Minimum seconds between two reports of committed batches.
_PERIOD = 10.0
_JSON_PERIOD = 1.0
_RUN_OPTIONS = (
    click.option(
        "--in", "source", required=True, metavar="URL", help="Stream of messages to score."
    ),
    click.option(
        "--out", "target", required=True, metavar="URL", help="Stream that answers go to."
    ),
    click.option(
        "--dead",
        metavar="URL",
        help="Stream of messages that cannot be answered.  [default: the source's topic and .dead]",
    ),
    click.option(
        "--group",
        default="mlctl",
        show_default=True,
        help="Consumer group: runs with the same group share the work.",
    ),
    click.option(
        "--from",
        "start",
        type=click.Choice(["earliest", "latest"]),
        default="earliest",
        show_default=True,
        help="First message of a new group.",
    ),
    click.option(
        "--shadow",
        is_flag=True,
        help="Read the same messages as GROUP.shadow; dead letters go beside --out.",
    ),
    click.option(
        "--payload",
        default="json",
        show_default=True,
        help="Format of messages: json, arrow, raw, avro, protobuf.",
    ),
    click.option(
        "--keep",
        multiple=True,
        metavar="FIELD[,FIELD...]",
        help="Fields of a message to copy into its answer; '*' for all (json, arrow).",
    ),
    click.option(
        "--map",
        "mapped",
        multiple=True,
        metavar="INPUT=COLUMN",
        help="Columns of Arrow messages that feed an input.",
    ),
    click.option(
        "--option",
        "options",
        multiple=True,
        metavar="NAME=VALUE",
        help="Option of the payload format.",
    ),
    click.option("--exactly-once", is_flag=True, help="Commit in Kafka's transactions."),
    click.option(
        "--max-latency-ms",
        type=click.FloatRange(1.0),
        default=100.0,
        show_default=True,
        help="Goal from a message's arrival to its commit; it bounds the size of batches.",
    ),
    click.option(
        "--max-batch",
        type=click.IntRange(1),
        default=8192,
        show_default=True,
        help="Maximum messages in a batch.",
    ),
    click.option(
        "--max-message-bytes",
        type=click.IntRange(1),
        default=8 << 20,
        show_default=True,
        help="Larger messages become dead letters.",
    ),
    click.option(
        "--max-dead-rate",
        default="10%",
        show_default=True,
        metavar="P%",
        help="Stop above this share of dead letters in the newest 1,000 messages.",
    ),
    click.option(
        "--patience",
        type=Duration(),
        default="5m",
        show_default=True,
        help="Time to wait for a broker or a model that is unavailable.",
    ),
    click.option("--max-messages", type=click.IntRange(1), help="End after this many messages."),
    click.option("--until-empty", is_flag=True, help="End when the group's lag is 0."),
    click.option(
        "--metrics-port",
        type=click.IntRange(0, 65_535),
        help="Serve Prometheus metrics on this port of 127.0.0.1; 0 takes a free one.",
    ),
)


def _run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return add_options(_RUN_OPTIONS, command)


@click.group()
def stream() -> None:
    """Score a stream of messages with a Bento's model."""


@stream.command()
@click.argument("bento")
@_run_options
@reporting(json_lines=True)
def run(output: CommandOutput, /, bento: str, **given: Any) -> None:
    """Score the messages of --in with BENTO, a Bento's tag or a bundle's folder, into --out.

    The first line of output is the guarantee. Several runs with the same --group share the work.
    Ctrl-C or SIGTERM commits the batch that was begun; uncommitted messages are delivered again.
    A URL is SCHEME://ADDRESS#TOPIC, such as sqlite://events.db#orders, a file of JSON lines, or -
    for standard input and output.
    """
    from services.runtime.scorable import find_scorable
    from services.stream.metrics import counted_events
    from services.stream.run import run_stream

    output.warn_unknown_variables()
    config = _stream_config(given, as_json=output.as_json)
    model = find_scorable(bento)
    name, port = model.name, given["metrics_port"]
    with (
        stopping(output) as stop,
        event_display(output) as display,
        counted_events(name, port, display, partial(_metrics_line, output)) as on_event,
    ):
        report = run_stream(model, config, on_event, stop, partial(display.opened, config))
    _show_report(output, report)
    if not report.complete and (given["until_empty"] or given["max_messages"]):
        raise MlctlError(
            ErrorCode.INTERRUPTED,
            f"stopped after {report.totals.messages:,} messages, all of them committed",
        )


@stream.command()
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


@stream.command()
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
    source, transport = _open(url)
    _show_messages(output, transport.browse(source, last=count))


@stream.command()
@click.argument("url")
@reporting(json_lines=True)
def tail(output: CommandOutput, /, url: str) -> None:
    """Show new messages of URL, until Ctrl-C."""
    source, transport = _open(url)
    with stopping(output) as stop:
        for message in transport.follow(source, 0.5):
            if message is not None:
                _show_messages(output, [message])
            if stop.is_set():
                return


@stream.command()
@click.argument("url")
@click.option("--group", default="mlctl", show_default=True, help="Consumer group.")
@reporting
def lag(output: CommandOutput, /, url: str, group: str) -> None:
    """Show how many messages of URL a group has not answered, by partition."""
    source, transport = _open(url)
    found = transport.status(source, group)
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
    if output.as_json:
        output.document({"url": source.redacted(), "forgotten": group})
    else:
        output.line(f"removed group {group!r} of {source.redacted()}")


@stream.command()
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


@stream.command()
@click.argument("url")
@click.option("--group", default="mlctl", show_default=True, help="Show the lag of this group.")
@reporting
def doctor(output: CommandOutput, /, url: str, group: str) -> None:
    """Connect to URL; show what its broker guarantees, and the group's lag."""
    stream_url, transport = _open(url)
    found = transport.status(stream_url, group)
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


@stream.command()
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
    _show_comparison(output, found, sorted(expected.digests), sorted(actual.digests))
    action = found.verdict.action.value
    if action != "advance":
        code = ErrorCode.ROLLED_BACK if action == "rollback" else ErrorCode.INCONCLUSIVE
        raise click.exceptions.Exit(ERROR_TABLE[code].exit_code)


def _show_comparison(
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


def _stream_config(given: Mapping[str, Any], *, as_json: bool) -> StreamConfig:
    """Return the run that the options describe; INVALID_INPUT for an invalid value."""
    from services.stream.base import ConnectionRequest, StreamUrl
    from services.stream.batching import BatchGoals
    from services.stream.engine import RunSettings
    from services.stream.payloads import PayloadRequest
    from services.stream.run import StreamConfig, default_dead, shadow_of

    source = StreamUrl.parse(given["source"])
    request = ConnectionRequest(
        source,
        given["group"],
        _destination(given["target"], as_json=as_json),
        _destination(given["dead"], as_json=as_json) if given["dead"] else default_dead(source),
        given["start"],
        given["exactly_once"],
    )
    return StreamConfig(
        shadow_of(request) if given["shadow"] else request,
        PayloadRequest(
            given["payload"],
            tuple(name for text in given["keep"] for name in text.split(",") if name),
            given["max_message_bytes"],
            map=given["mapped"],
            options=parse_options(given["options"]),
        ),
        RunSettings(
            BatchGoals(given["max_latency_ms"] / 1e3, given["max_batch"]),
            _share(given["max_dead_rate"]),
            given["patience"],
            max_messages=given["max_messages"],
            until_empty=given["until_empty"],
        ),
    )


def _destination(text: str, *, as_json: bool) -> StreamUrl:
    """Parse a URL to write to; keep standard output open before printing is redirected."""
    from services.stream.base import StreamUrl

    url = StreamUrl.parse(text)
    if url.scheme != "-":
        return url
    if as_json:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, "--json and the answers cannot both use standard output"
        )
    return replace(url, options={"descriptor": str(os.dup(1))})


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"--max-dead-rate {text}: write a share, such as 10% or 0.1"
        )
    return share


def _open(url: str) -> tuple[StreamUrl, Transport]:
    """Parse a URL; return it with its transport."""
    from services.stream.base import StreamUrl
    from services.stream.transports import transport_of

    found = StreamUrl.parse(url)
    return found, transport_of(found)


def _metrics_line(output: CommandOutput, port: int) -> None:
    output.note(f"Metrics: http://127.0.0.1:{port}/metrics")


def _show_messages(output: CommandOutput, messages: Iterable[Message]) -> None:
    from services.stream.tools import as_document, as_lines

    for message in messages:
        if output.as_json:
            json_line(as_document(message))
            continue
        for line in as_lines(message):
            output.line(line)


@contextlib.contextmanager
def event_display(output: CommandOutput) -> Iterator[EventDisplay]:
    """Yield a display of events: JSON lines, a status line, or a line now and then.

    Output of transforms goes to stderr, so that it cannot mix with answers or events.
    """
    if output.as_json:
        with os.fdopen(os.dup(1), "w") as stream, only_results_on_stdout():
            throttled = _Throttled(_JSON_PERIOD, lambda event: _event_line(event, stream))
            yield EventDisplay(output, throttled, stream)
        return
    with only_results_on_stdout(), output.working() as show:
        note = _Throttled(_PERIOD, _Changes(output.note))

        def on_event(event: StreamEvent) -> None:
            show(_event_text(event))
            if not output.live:
                note(event)

        yield EventDisplay(output, on_event)


class EventDisplay:
    """Shows events, and the guarantee before the first one. `stream` is for --json."""

    def __init__(
        self,
        output: CommandOutput,
        show: Callable[[StreamEvent], None],
        stream: TextIO | None = None,
    ) -> None:
        self._output = output
        self._show = show
        self._stream = stream

    def __call__(self, event: StreamEvent) -> None:
        self._show(event)

    def opened(self, config: StreamConfig, connection: StreamConnection) -> None:
        """Print the guarantee and the streams."""
        from services.stream.run import guarantee_text

        request = config.connection
        urls = {
            "in": request.source.redacted(),
            "out": request.answers.redacted() if request.answers else None,
            "dead": request.dead.redacted() if request.dead else None,
        }
        if self._stream is not None:
            document = {"event": "opened", "guarantee": connection.guarantee.value, **urls}
            json_line(document, self._stream)
            return
        self._output.note(f"{guarantee_text(connection, request.source)}.")
        self._output.note(f"{urls['in']} -> {urls['out']}, dead letters -> {urls['dead']}")


class _Throttled:
    """Shows events; of frequent ones only one in `period` seconds."""

    def __init__(self, period: float, show: Callable[[StreamEvent], None]) -> None:
        self._period = period
        self._show = show
        self._next = 0.0

    def __call__(self, event: StreamEvent) -> None:
        if event.phase in {"committed", "idle"}:
            if event.seconds < self._next:
                return
            self._next = event.seconds + self._period
        self._show(event)


class _Changes:
    """Shows an event if it differs from the last one: an idle run is reported once."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._last: tuple[object, ...] | None = None

    def __call__(self, event: StreamEvent) -> None:
        state = (event.phase, event.totals, event.lag, event.detail)
        if state != self._last:
            self._note(_event_text(event))
        self._last = state


def _event_text(event: StreamEvent) -> str:
    """Return one line: messages, rate, lag, dead letters."""
    if event.detail:
        return f"{event.phase.value.capitalize()}: {event.detail}"
    rate = event.totals.messages / event.seconds if event.seconds > 0 else 0.0
    parts = [f"{counted(event.totals.messages, 'message')}, {rate:,.0f}/s"]
    if event.lag is not None:
        parts.append(f"lag {sum(event.lag.values()):,}")
    if event.batch is not None:
        parts.append(f"{event.batch.messages:,} in the last batch")
    parts.append(f"{event.totals.dead:,} dead")
    return ", ".join(parts)


def _show_report(output: CommandOutput, report: StreamReport) -> None:
    """Print the totals of a run."""
    totals = report.totals
    if output.as_json:
        json_line(
            {
                "event": "summary",
                "answers": totals.answers,
                "dead": totals.dead,
                "seconds": round(report.seconds, 3),
                "complete": report.complete,
            }
        )
        return
    rate = totals.messages / max(report.seconds, 1e-9)
    output.note(
        f"{counted(totals.answers, 'answer')} and {counted(totals.dead, 'dead letter')} "
        f"in {report.seconds:.1f} s, {rate:,.0f} messages/s"
    )


def _event_line(event: StreamEvent, stream: TextIO) -> None:
    document: dict[str, Any] = {
        "event": event.phase.value,
        "answers": event.totals.answers,
        "dead": event.totals.dead,
        "seconds": round(event.seconds, 3),
        "lag": event.lag,
    }
    if batch := event.batch:
        document["batch"] = {
            "messages": batch.messages,
            "rows": batch.rows,
            "wait_ms": round(1e3 * batch.wait_s, 3),
            "decode_ms": round(1e3 * batch.decode_s, 3),
            "score_ms": round(1e3 * batch.score_s, 3),
            "encode_ms": round(1e3 * batch.encode_s, 3),
            "commit_ms": round(1e3 * batch.commit_s, 3),
            "dead": dict(batch.reasons),
        }
    if event.detail:
        document["detail"] = event.detail
    json_line(document, stream)
    stream.flush()
