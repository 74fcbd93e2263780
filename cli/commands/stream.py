"""`mlctl stream`: score an unbounded stream of messages with the model of a Bento."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

import click

from bundle.errors import ERROR_TABLE, ErrorCode, MlctlError
from cli.commands.batch import parse_options
from cli.options import Duration, add_options
from cli.output import CommandOutput, counted, reporting
from cli.progress import json_line, only_results_on_stdout, stopping

if TYPE_CHECKING:
    from rollout.domain.streams import StreamsCompared
    from services.stream.base import Message, StreamConnection, StreamUrl
    from services.stream.engine import StreamReport
    from services.stream.events import StreamEvent
    from services.stream.run import StreamConfig

# Minimum seconds between two reports of committed batches.
_PERIOD = 10.0
_JSON_PERIOD = 1.0

_URL = "STREAM"

_RUN = (
    click.option(
        "--in",
        "source",
        required=True,
        metavar=_URL,
        help="Where messages come from: a STREAM, a file of JSON lines, or - for stdin.",
    ),
    click.option(
        "--out",
        "target",
        required=True,
        metavar=_URL,
        help="Where answers go: a STREAM, a file of JSON lines, or - for stdout.",
    ),
    click.option(
        "--dead",
        metavar=_URL,
        help="Where messages go that cannot be answered.  [default: --in with .dead added]",
    ),
    click.option(
        "--group", default="mlctl", show_default=True, help="Consumer group that shares the work."
    ),
    click.option(
        "--from",
        "start",
        type=click.Choice(["earliest", "latest"]),
        default="earliest",
        show_default=True,
        help="Where a new group starts to read.",
    ),
    click.option(
        "--shadow",
        is_flag=True,
        help="Read the group's messages as GROUP.shadow; dead letters go beside --out.",
    ),
    click.option(
        "--payload",
        default="json",
        show_default=True,
        help="Format of messages and answers; see docs/stream.md.",
    ),
    click.option(
        "--keep",
        multiple=True,
        metavar="FIELD[,FIELD...]",
        help="Message fields to copy to the answers.",
    ),
    click.option(
        "--map",
        "mapped",
        multiple=True,
        metavar="INPUT=COLUMN[,COLUMN...]",
        help="Columns of Arrow messages that feed a model input.",
    ),
    click.option(
        "--option",
        "options",
        multiple=True,
        metavar="NAME=VALUE",
        help="Setting of one payload format; see docs/stream.md.",
    ),
    click.option(
        "--exactly-once", is_flag=True, help="Commit answers in the broker's transactions."
    ),
    click.option("--ordered", is_flag=True, help="Keep the order of each key's messages."),
    click.option(
        "--max-latency-ms",
        type=click.FloatRange(1.0),
        default=100.0,
        show_default=True,
        help="Target from a message's arrival to its answer; decides the size of batches.",
    ),
    click.option(
        "--max-batch",
        type=click.IntRange(1),
        default=8192,
        show_default=True,
        help="Maximum number of messages in a batch.",
    ),
    click.option(
        "--max-message-bytes",
        type=click.IntRange(1),
        default=8 << 20,
        show_default=True,
        help="Maximum size of a message; a larger one is a dead letter.",
    ),
    click.option(
        "--max-dead-rate",
        default="10%",
        show_default=True,
        metavar="P%",
        help="Maximum share of dead letters among the last 1,000 messages; above it the run ends.",
    ),
    click.option(
        "--patience",
        type=Duration(),
        default="5m",
        show_default=True,
        help="How long to wait for an unavailable broker or model.",
    ),
    click.option("--max-messages", type=click.IntRange(1), help="End after this many messages."),
    click.option("--until-empty", is_flag=True, help="End when the group has no messages left."),
    click.option(
        "--metrics-port",
        type=click.IntRange(0, 65_535),
        help="Serve Prometheus metrics on this port of 127.0.0.1; 0 takes a free port.",
    ),
)

_GROUP = click.option("--group", default="mlctl", show_default=True, help="Consumer group.")


def _run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return add_options(_RUN, command)


def _last_option(count: int, text: str) -> Callable[..., Any]:
    return click.option(
        "-n", "--last", type=click.IntRange(1), default=count, show_default=True, help=text
    )


@click.group()
def stream() -> None:
    """Score a stream of messages with a Bento's model.

    A STREAM is a URL SCHEME://ADDRESS#TOPIC, such as sqlite://events.db#orders,
    kafka://broker:9092#orders or redis://cache:6379#orders.
    """


@stream.command()
@click.argument("bento")
@_run_options
@reporting(json_lines=True)
def run(output: CommandOutput, /, bento: str, **given: Any) -> None:
    """Score the messages of --in with BENTO (a tag, or a bundle's folder) into --out.

    First prints what is guaranteed after a crash. Runs with the same --group share the work.
    Ctrl-C commits the work in progress and ends the run; a later run continues after the last
    commit.

    \b
    Example:
      mlctl stream run digits --in sqlite://events.db#rows --out sqlite://events.db#scores
    """
    from services.runtime.scorable import find_scorable
    from services.stream.metrics import counting
    from services.stream.run import run_stream

    output.warn_unknown_variables()
    config = _stream_config(given, as_json=output.as_json)
    model = find_scorable(bento)
    name, port = model.name, given["metrics_port"]
    with (
        stopping(output) as stop,
        watching(output) as view,
        counting(name, port, view, partial(_show_metrics_address, output)) as watch,
    ):
        report = run_stream(model, config, watch, stop, partial(view.opened, config))
    _show_report(output, report)
    if not report.complete and (given["until_empty"] or given["max_messages"]):
        raise MlctlError(
            ErrorCode.INTERRUPTED,
            f"stopped after {report.totals.messages} messages, all of them committed",
        )


@stream.command()
@click.argument("url", metavar=_URL)
@_GROUP
@reporting
def doctor(output: CommandOutput, /, url: str, group: str) -> None:
    """Connect to STREAM; show what its broker guarantees and how far the group has read."""
    from services.stream.base import StreamUrl
    from services.stream.tools import browsable

    parsed = StreamUrl.parse(url)
    found = browsable(parsed).examine(parsed, group)
    behind = None if found.lag is None else sum(found.lag.values())
    if output.as_json:
        output.document(
            {
                "place": parsed.shown(),
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
@click.argument("url", metavar=_URL)
@click.option(
    "--in", "source", metavar="FILE", help="File of lines to send.  [default: standard input]"
)
@click.option("--key-field", "key", help="JSON field that becomes the message's key.")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), help="Maximum messages per second."
)
@reporting
def send(
    output: CommandOutput, /, url: str, source: str | None, key: str | None, rate: float | None
) -> None:
    """Send lines to STREAM, each as one message.

    \b
    Example:
      mlctl stream send sqlite://events.db#rows --in rows.jsonl
    """
    from pathlib import Path

    from services.stream.base import StreamUrl
    from services.stream.tools import send as send_lines

    to = StreamUrl.parse(url)
    path = None if source in (None, "-") else Path(str(source))
    with stopping(output) as stop, output.working() as show:
        sent = send_lines(
            to, path, stop, key=key, rate=rate, told=lambda count: show(f"{count:,} sent")
        )
    if output.as_json:
        output.document({"place": to.shown(), "sent": sent})
    else:
        output.note(f"{counted(sent, 'message')} sent to {to.shown()}")


@stream.command()
@click.argument("url", metavar=_URL)
@_last_option(10, "Number of messages.")
@reporting(json_lines=True)
def peek(output: CommandOutput, /, url: str, last: int) -> None:
    """Show the last messages of STREAM with their headers, oldest first; consumes nothing.

    The headers of dead letters say why a message could not be answered.
    """
    from services.stream.base import StreamUrl
    from services.stream.tools import browsable

    parsed = StreamUrl.parse(url)
    _show_messages(output, browsable(parsed).browse(parsed, last=last))


@stream.command()
@click.argument("url", metavar=_URL)
@reporting(json_lines=True)
def tail(output: CommandOutput, /, url: str) -> None:
    """Show new messages of STREAM as they arrive, until Ctrl-C."""
    from services.stream.base import StreamUrl
    from services.stream.tools import browsable

    parsed = StreamUrl.parse(url)
    with stopping(output) as stop:
        for message in browsable(parsed).follow(parsed, 0.5):
            if message is not None:
                _show_messages(output, [message])
            if stop.is_set():
                return


@stream.command()
@click.argument("url", metavar=_URL)
@_GROUP
@reporting
def lag(output: CommandOutput, /, url: str, group: str) -> None:
    """Show how many messages of STREAM a group has not answered yet, by partition."""
    from services.stream.base import StreamUrl
    from services.stream.tools import browsable

    parsed = StreamUrl.parse(url)
    found = browsable(parsed).examine(parsed, group)
    total = None if found.lag is None else sum(found.lag.values())
    if output.as_json:
        output.document(
            {
                "place": parsed.shown(),
                "group": group,
                "messages": found.messages,
                "lag": None if found.lag is None else dict(found.lag),
                "total": total,
            }
        )
        return
    if found.lag is None:
        output.line(f"{parsed.shown()} has no group {group!r}")
        return
    output.table(["partition", "lag>"], [(name, f"{n:,}") for name, n in found.lag.items()])
    stored = "" if found.messages is None else f", {found.messages:,} messages are stored"
    output.line(f"{total:,} behind{stored}")


@stream.command()
@click.argument("url", metavar=_URL)
@click.option("--group", required=True, help="Consumer group that is no longer used.")
@reporting
def forget(output: CommandOutput, /, url: str, group: str) -> None:
    """Delete the position of a group, so that retention no longer keeps messages for it.

    A later run with that --group starts as a new group. Fails while the group has a consumer.
    """
    from services.stream.base import StreamUrl
    from services.stream.tools import forget as forget_group

    parsed = StreamUrl.parse(url)
    forget_group(parsed, group)
    if output.as_json:
        output.document({"place": parsed.shown(), "forgotten": group})
    else:
        output.line(f"deleted group {group!r} of {parsed.shown()}")


@stream.command()
@click.argument("url", metavar=_URL)
@click.option("--to", "target", required=True, metavar=_URL, help="Where to send them.")
@reporting
def redrive(output: CommandOutput, /, url: str, target: str) -> None:
    """Send the dead letters in STREAM to --to again, without the headers that mlctl added.

    If both are at one broker with transactions, each letter is sent once even if this command is
    repeated. Letters that arrive meanwhile stay for the next time.
    """
    from services.stream.base import StreamUrl
    from services.stream.tools import redrive as send_again

    source, to = StreamUrl.parse(url), StreamUrl.parse(target)
    with stopping(output) as stop, output.working() as show:
        sent = send_again(source, to, stop, lambda count: show(f"{count:,} sent again"))
    if output.as_json:
        output.document({"from": source.shown(), "to": to.shown(), "sent": sent})
    else:
        output.line(f"{counted(sent, 'dead letter')} sent to {to.shown()}")


@stream.command()
@click.argument("live", metavar="LIVE")
@click.argument("candidate", metavar="CANDIDATE")
@_last_option(10_000, "Maximum number of answers of each stream to compare.")
@click.option(
    "--min-agreement",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.99,
    show_default=True,
    help="Minimum share of messages with the same answer.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    default=0.01,
    show_default=True,
    help="Relative difference up to which two numbers count as equal.",
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
    """Compare the answers of a `stream run --shadow` in CANDIDATE with those in LIVE.

    Both are STREAMs. Answers are paired by the messages they belong to. Exits 0 if the agreement
    is proved, 10 if the candidate is worse, 11 if there are too few messages to decide.
    """
    from rollout.domain.spec import RolloutSpec
    from rollout.domain.streams import judge_streams
    from services.stream.base import StreamUrl
    from services.stream.recorded import read_answered
    from services.stream.run import dead_place

    live_url, candidate_url = StreamUrl.parse(live), StreamUrl.parse(candidate)
    ours = read_answered(live_url, None, last)
    theirs = read_answered(candidate_url, dead_place(candidate_url), last)
    spec = RolloutSpec(max_disagreement=1.0 - min_agreement, tolerance=tolerance)
    found = judge_streams(ours.answers, theirs.answers, spec)
    _show_comparison(output, found, sorted(ours.digests), sorted(theirs.digests))
    action = found.verdict.action.value
    if action != "advance":
        code = ErrorCode.ROLLED_BACK if action == "rollback" else ErrorCode.INCONCLUSIVE
        raise click.exceptions.Exit(ERROR_TABLE[code].exit_code)


def _stream_config(given: Mapping[str, Any], *, as_json: bool) -> StreamConfig:
    """Return the configuration of a run; INVALID_INPUT for a malformed option."""
    from services.stream.base import LinkRequest, StreamUrl
    from services.stream.engine import RunSettings
    from services.stream.payloads import PayloadRequest
    from services.stream.run import StreamConfig, dead_place, shadow_of
    from services.stream.window import BatchGoals

    source = StreamUrl.parse(given["source"])
    link = LinkRequest(
        source,
        given["group"],
        _output_url(given["target"], as_json=as_json),
        _output_url(given["dead"], as_json=as_json) if given["dead"] else dead_place(source),
        given["start"],
        given["exactly_once"],
        given["ordered"],
    )
    return StreamConfig(
        shadow_of(link) if given["shadow"] else link,
        PayloadRequest(
            given["payload"],
            tuple(name for text in given["keep"] for name in text.split(",") if name),
            given["max_message_bytes"],
            map=given["mapped"],
            options=parse_options(given["options"]),
        ),
        RunSettings(
            BatchGoals(given["max_latency_ms"] / 1e3, given["max_batch"]),
            _parse_share(given["max_dead_rate"]),
            given["patience"],
            max_messages=given["max_messages"],
            until_empty=given["until_empty"],
        ),
    )


def _output_url(text: str, *, as_json: bool) -> StreamUrl:
    """Parse the URL of an output; stdout is duplicated before other prints are sent to stderr."""
    from services.stream.base import StreamUrl

    url = StreamUrl.parse(text)
    if url.scheme != "-":
        return url
    if as_json:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            "--json and answers on - both write to the standard output",
            "Write the answers to a file or a stream with --out.",
        )
    return replace(url, options={"descriptor": str(os.dup(1))})


def _parse_share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"--max-dead-rate {text}: write a share, such as 10% or 0.1"
        )
    return share


@contextlib.contextmanager
def watching(output: CommandOutput) -> Iterator[RunView]:
    """Yield a view of a run; what a transform prints to stdout goes to stderr meanwhile."""
    if output.as_json:
        with os.fdopen(os.dup(1), "w") as stream, only_results_on_stdout():
            show = _Throttled(_JSON_PERIOD, lambda event: _print_event(event, stream))
            yield RunView(output, show, stream)
        return
    with only_results_on_stdout(), output.working() as show_line:
        note = _Throttled(_PERIOD, _Changes(output.note))

        def watch(event: StreamEvent) -> None:
            show_line(_describe(event))
            if not output.live:
                note(event)

        yield RunView(output, watch)


class RunView:
    """Shows the events of a run, and first of all its guarantee; `stream` is for --json."""

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

    def opened(self, config: StreamConfig, link: StreamConnection) -> None:
        """Show the guarantee, and between which streams it holds."""
        from services.stream.run import promise

        request = config.link
        urls = {
            "in": request.source.shown(),
            "out": request.answers.shown() if request.answers else None,
            "dead": request.dead.shown() if request.dead else None,
        }
        if self._stream is not None:
            document = {"event": "opened", "guarantee": link.guarantee.value, **urls}
            json_line(document, self._stream)
            return
        self._output.note(f"{promise(link, request.source)}.")
        self._output.note(f"{urls['in']} -> {urls['out']}, dead letters -> {urls['dead']}")


class _Throttled:
    """Passes events on; of committed and idle ones at most one per `period` seconds."""

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
    """Shows an event unless nothing changed since the last one, so an idle run prints once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._last: tuple[object, ...] | None = None

    def __call__(self, event: StreamEvent) -> None:
        state = (event.phase, event.totals, event.lag, event.detail)
        if state != self._last:
            self._say(_describe(event))
        self._last = state


def _describe(event: StreamEvent) -> str:
    """Return one line of progress: messages, rate, lag and dead letters."""
    if event.detail:
        return f"{event.phase.value.capitalize()}: {event.detail}"
    rate = event.totals.messages / event.seconds if event.seconds > 0 else 0.0
    parts = [f"{counted(event.totals.messages, 'message')}, {rate:,.0f}/s"]
    if event.lag is not None:
        parts.append(f"{sum(event.lag.values()):,} behind")
    if event.batch is not None:
        parts.append(f"{event.batch.messages:,} in the last batch")
    parts.append(f"{event.totals.dead:,} dead")
    return ", ".join(parts)


def _show_metrics_address(output: CommandOutput, port: int) -> None:
    output.note(f"Metrics: http://127.0.0.1:{port}/metrics")


def _show_report(output: CommandOutput, report: StreamReport) -> None:
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


def _print_event(event: StreamEvent, stream: TextIO) -> None:
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


def _show_messages(output: CommandOutput, messages: Iterable[Message]) -> None:
    from services.stream.tools import as_document, as_lines

    for message in messages:
        if output.as_json:
            json_line(as_document(message))
            continue
        for line in as_lines(message):
            output.line(line)


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
        output.line(f"not compared, only one side has them: {', '.join(found.left_out)}")
    for source in found.differing:
        output.line(f"  {source}")
