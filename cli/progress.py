"""How long commands report progress, keep stdout clean, and stop."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any, NoReturn, TextIO

import click

from mlctl.cli.output import CommandOutput
from mlctl.core.errors import ErrorCode, MlctlError


@contextlib.contextmanager
def only_results_on_stdout() -> Iterator[None]:
    """Send what libraries and users' functions print to stdout to stderr while the block runs.

    Covers compiled code that writes to the file descriptor itself.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C while the block runs, so that no server is left behind."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM while the block cleans up, in the processes it starts as well."""
    before = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def stopping(output: CommandOutput) -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C or SIGTERM sets; the second signal ends the process at once."""
    stop = threading.Event()

    def request_stop(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        output.note_from_signal(
            "Stopping after the work in progress is committed; press Ctrl-C again to stop now."
        )

    before = {each: signal.signal(each, request_stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    except KeyboardInterrupt:
        _exit_now(output)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit_now(output: CommandOutput) -> NoReturn:
    """End the process without waiting for scoring threads, as a normal exit would."""
    try:
        output.fail(MlctlError(ErrorCode.INTERRUPTED, "interrupted"))
    except click.exceptions.Exit as exiting:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exiting.exit_code)


def json_line(document: Mapping[str, Any], stream: TextIO | None = None) -> None:
    """Print one JSON document on a single line, for commands that print several."""
    click.echo(json.dumps(document, ensure_ascii=False, allow_nan=False), stream)


def clock_time(seconds: float) -> str:
    """Return seconds as a stopwatch shows them: `0:07`, `12:30`, `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
