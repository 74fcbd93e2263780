"""The outbox: deliver what the journal recorded to the registry, MLflow and webhooks.

Each sink has a thread, so that a slow one delays no other and none delays a tick. The events are
in the journal, and so is how far each sink is: after a crash the last delivery is repeated, and
none is lost. A failed delivery is retried after a pause that doubles.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, Self

from mlctl.core.backoff import pause_after
from mlctl.core.clock import Clock
from mlctl.rollout.journal.journal import Journal, StaleEpochError

FIRST_PAUSE, MAX_PAUSE = 1.0, 300.0
_IDLE_SECONDS = 0.5
_LAST_SECONDS = 3.0
_POLL_SECONDS = 0.1


class DeliveryError(Exception):
    """A delivery failed; `again_in` is the pause in seconds that the receiver requested."""

    def __init__(self, why: str, again_in: float = 0.0) -> None:
        super().__init__(why)
        self.again_in = again_in


class OutboxStopped(Exception):  # noqa: N818 - not a fault
    """The daemon stops; the next daemon repeats the delivery."""


class EventSink(Protocol):
    """A destination of a deployment's events. A delivery may happen twice."""

    @property
    def name(self) -> str:
        """The name of its row in the journal."""
        ...

    def pending(self) -> str | None:
        """Return the subject that waits for delivery, None if there is none.

        The pause after a failure holds for the subject that failed only.
        """
        ...

    def deliver(self, after: int) -> Iterator[int]:
        """Deliver what follows event `after`; yield the last event of each accepted delivery.

        DeliveryError if one fails.
        """
        ...

    def close(self) -> None: ...


OpenSink = Callable[[Journal, threading.Event], EventSink]


class Delivering:
    """Delivers to one sink of the deployment `name`."""

    def __init__(self, name: str, sink: EventSink, journal: Journal, clock: Clock) -> None:
        self._name = name
        self._sink = sink
        self._journal = journal
        self._clock = clock

    def step(self) -> float:
        """Deliver what waits, if no pause holds it up; return the seconds until the next call."""
        sink, subject = self._sink, self._sink.pending()
        if subject is None:
            return _IDLE_SECONDS
        state = self._journal.delivery(self._name, sink.name)
        if state.body.get("subject") != subject:
            state = replace(state, failures=0, not_before=0.0)
        now = self._clock.wall()
        if now < state.not_before <= now + MAX_PAUSE:  # else the clock was set back
            return min(state.not_before - now, _IDLE_SECONDS)
        state = replace(state, error=None, not_before=0.0, body={"subject": subject})
        try:
            for seq in sink.deliver(state.seq):
                state = replace(state, seq=max(state.seq, seq), failures=0)
                self._journal.put_delivery(self._name, sink.name, state)
        except DeliveryError as error:
            failures = state.failures + 1
            pause = max(pause_after(failures, FIRST_PAUSE, MAX_PAUSE), error.again_in)
            pause = min(pause, MAX_PAUSE)
            if failures == 1:
                print(f"{sink.name}: {error}; retrying", file=sys.stderr, flush=True)
            not_before = self._clock.wall() + pause
            state = replace(state, failures=failures, error=str(error), not_before=not_before)
            self._journal.put_delivery(self._name, sink.name, state)
            return pause
        return _IDLE_SECONDS


class Outbox:
    """The sinks of the deployment `name`, each with a thread while this is entered.

    A sink is opened in its thread, because a connection to the journal belongs to one thread. At
    the end each delivers what it still can: that the deployment was taken down, for one.
    """

    def __init__(
        self,
        name: str,
        sinks: Mapping[str, OpenSink],
        open_journal: Callable[[], Journal],
        clock: Clock,
    ) -> None:
        self._name = name
        self._open_journal = open_journal
        self._clock = clock
        self._stop = threading.Event()
        self._sinks = sinks
        self._threads: dict[str, threading.Thread] = {}

    def __enter__(self) -> Self:
        self.add(self._sinks)
        return self

    def add(self, sinks: Mapping[str, OpenSink]) -> None:
        """Begin to deliver to those of `sinks`, by their names, that it does not deliver to yet."""
        for name in sinks.keys() - self._threads.keys():
            # A daemon thread: a delivery that hangs must not delay the daemon's end.
            thread = threading.Thread(target=self._run, args=(sinks[name],), daemon=True)
            self._threads[name] = thread
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        deadline = time.monotonic() + _LAST_SECONDS
        for thread in self._threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self, open_sink: OpenSink) -> None:
        while not self._stop.is_set():
            try:
                self._deliver(open_sink)
            except (OutboxStopped, StaleEpochError):
                return
            except Exception:  # noqa: BLE001 - one bad moment must not end the reports; it is logged
                traceback.print_exc()
                self._stop.wait(MAX_PAUSE)

    def _deliver(self, open_sink: OpenSink) -> None:
        with self._open_journal() as journal:
            sink = open_sink(journal, self._stop)
            delivering = Delivering(self._name, sink, journal, self._clock)
            try:
                while not self._stop.wait(delivering.step()):
                    pass
                delivering.step()
            finally:
                sink.close()


def run_command(
    command: Sequence[str], text: str, stop: threading.Event, seconds: float | None = None
) -> None:
    """Run a command with `text` on its standard input until it ends.

    DeliveryError with its last words if it fails, or takes longer than `seconds`; OutboxStopped,
    and the command is killed, once `stop` is set.
    """
    if stop.is_set():
        raise OutboxStopped
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            command, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe, text=True
        )
    except OSError as error:
        raise DeliveryError(str(error)) from error
    deadline = None if seconds is None else time.monotonic() + seconds
    with process:
        try:
            words = _communicate(process, text, stop, deadline)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        lines = words.strip().splitlines() or [f"exit code {process.returncode}"]
        raise DeliveryError(lines[-1])


def _communicate(
    process: subprocess.Popen[str], text: str, stop: threading.Event, deadline: float | None
) -> str:
    """Return what the process wrote to stderr until its end."""
    waiting: str | None = text
    while not stop.is_set():
        try:
            return process.communicate(waiting, _POLL_SECONDS)[1]
        except subprocess.TimeoutExpired:
            waiting = None
        if deadline is not None and time.monotonic() > deadline:
            raise DeliveryError("the command took too long")
    raise OutboxStopped
