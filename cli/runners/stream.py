"""A run on a stream: what `mlctl stream run` and an image's `stream` do with their options."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from mlctl.cli.output import CommandOutput, counted
from mlctl.cli.progress import json_line, only_results_on_stdout, stopping
from mlctl.cli.runners.stream_options import StreamRunOptions, stream_config
from mlctl.core.errors import ErrorCode, MlctlError

if TYPE_CHECKING:
    from mlctl.services.layout.scorable import Scorable
    from mlctl.services.stream.base import StreamConnection
    from mlctl.services.stream.engine import StreamReport
    from mlctl.services.stream.events import StreamEvent
    from mlctl.services.stream.start import StreamConfig

# Minimum seconds between two reports of committed batches.
_PERIOD = 10.0
_JSON_PERIOD = 1.0


def score_stream(
    output: CommandOutput, find: Callable[[], Scorable], options: StreamRunOptions
) -> None:
    """Score the messages of a stream with the model that `find` returns."""
    from mlctl.services.stream.metrics import counted_events
    from mlctl.services.stream.start import run_stream

    config = stream_config(options, as_json=output.as_json)
    model = find()
    address = (options.metrics_host, options.metrics_port)
    on_port = partial(_metrics_line, output, address[0])
    with (
        stopping(output) as stop,
        event_display(output) as display,
        counted_events(model.name, address, display, on_port) as on_event,
    ):
        report = run_stream(model, config, on_event, stop, partial(display.opened, config))
    _show_report(output, report)
    if not report.complete and (options.until_empty or options.max_messages):
        raise MlctlError(
            ErrorCode.INTERRUPTED,
            f"stopped after {report.totals.messages:,} messages, all of them committed",
        )


def _metrics_line(output: CommandOutput, host: str, port: int) -> None:
    shown = f"[{host}]" if ":" in host else host
    output.note(f"Metrics: http://{shown}:{port}/metrics")


@contextlib.contextmanager
def event_display(output: CommandOutput) -> Iterator[EventDisplay]:
    """Yield a display of events: JSON lines, a status line, or a line now and then.

    Output of transforms goes to stderr, so that it cannot mix with answers or events.
    """
    if output.as_json:
        with os.fdopen(os.dup(1), "w") as stream, only_results_on_stdout():
            yield EventDisplay(output, stream=stream)
        return
    with only_results_on_stdout(), output.working() as show:
        yield EventDisplay(output, show)


class EventDisplay:
    """Shows events, and the guarantee before the first one; `stream` is for --json.

    Of frequent events only one in a while is printed, and of those of an idle run only the first.
    """

    def __init__(
        self,
        output: CommandOutput,
        show: Callable[[str], None] = lambda _text: None,
        stream: TextIO | None = None,
    ) -> None:
        self._output = output
        self._show = show
        self._stream = stream
        self._period = _PERIOD if stream is None else _JSON_PERIOD
        self._next = 0.0
        self._last: tuple[object, ...] = ()

    def __call__(self, event: StreamEvent) -> None:
        if self._stream is None:
            self._show(_event_text(event))
        if event.phase in {"committed", "idle"}:
            if event.seconds < self._next:
                return
            self._next = event.seconds + self._period
        if self._stream is not None:
            _event_line(event, self._stream)
            return
        state = (event.phase, event.totals, event.lag, event.detail)
        if not self._output.live and state != self._last:
            self._output.note(_event_text(event))
        self._last = state

    def opened(self, config: StreamConfig, connection: StreamConnection) -> None:
        """Print the guarantee and the streams."""
        from mlctl.services.stream.start import guarantee_text

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
            **{f"{stage}_ms": round(1e3 * s, 3) for stage, s in batch.stages.items()},
            "dead": dict(batch.reasons),
        }
    if event.detail:
        document["detail"] = event.detail
    json_line(document, stream)
    stream.flush()
