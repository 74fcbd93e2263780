"""What `mlctl stream run` shows: the guarantee first, then where it stands, then how it ended."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from cli.output import CommandOutput, counted
from cli.progress import json_line, only_results_on_stdout

if TYPE_CHECKING:
    from services.stream.base import StreamConnection
    from services.stream.engine import StreamReport
    from services.stream.events import StreamEvent
    from services.stream.run import StreamConfig

# Committed batches are told at most that often, in seconds.
_PERIOD = 10.0
_JSON_PERIOD = 1.0


def serving_line(output: CommandOutput, port: int) -> None:
    """Where the metrics are."""
    output.note(f"Metrics: http://127.0.0.1:{port}/metrics")


@contextlib.contextmanager
def watching(output: CommandOutput) -> Iterator[Shown]:
    """Something that shows a run as fits where the output goes.

    What a transform prints goes to stderr, so that it cannot get among answers or events.
    """
    if output.as_json:
        with os.fdopen(os.dup(1), "w") as stream, only_results_on_stdout():
            seldom = _Seldom(_JSON_PERIOD, lambda event: _event_line(event, stream))
            yield Shown(output, seldom, stream)
        return
    with only_results_on_stdout(), output.working() as show:
        note = _Seldom(_PERIOD, _Changes(output.note))

        def watch(event: StreamEvent) -> None:
            show(told(event))
            if not output.live:
                note(event)

        yield Shown(output, watch)


class Shown:
    """Shows events; before the first of them what is guaranteed. `stream` is for --json."""

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

    def opened(self, wanted: StreamConfig, link: StreamConnection) -> None:
        """The first line: what is guaranteed, and between which places."""
        from services.stream.run import promise

        request = wanted.link
        places = {
            "in": request.source.shown(),
            "out": request.answers.shown() if request.answers else None,
            "dead": request.dead.shown() if request.dead else None,
        }
        if self._stream is not None:
            document = {"event": "opened", "guarantee": link.guarantee.value, **places}
            json_line(document, self._stream)
            return
        self._output.note(f"{promise(link, request.source)}.")
        self._output.note(f"{places['in']} -> {places['out']}, dead letters -> {places['dead']}")


class _Seldom:
    """Passes an event on; of those that come all the time, one in `period` seconds."""

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
    """Tells an event unless nothing moved since the last: an idle run says so once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._last: tuple[object, ...] | None = None

    def __call__(self, event: StreamEvent) -> None:
        here = (event.phase, event.totals, event.lag, event.detail)
        if here != self._last:
            self._say(told(event))
        self._last = here


def told(event: StreamEvent) -> str:
    """One line: how far it is, how fast, what is behind."""
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


def show_report(output: CommandOutput, report: StreamReport) -> None:
    """How a run ended."""
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
