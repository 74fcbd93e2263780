"""What several rollout tests need: revisions of fake Bentos, quick settings, live load."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Self

from mlctl.rollout.client import deployments
from mlctl.rollout.domain.process_ref import DAEMON, ProcessRef
from mlctl.rollout.domain.spec import DeploymentSettings, Revision, RolloutSpec
from mlctl.rollout.drivers.local import processes
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.records import ENDED, JournalEvent
from tests.support.wait import wait_until

FAKE_BENTO = Path(__file__).with_name("fake_bento.py")


def revision(tag: str) -> Revision:
    """The revision of a fake Bento; its digest is the tag's version, filled with zeros."""
    digest = tag.partition("?")[0].partition(":")[2].ljust(64, "0")
    return Revision(tag, digest, "tiny-optimized", "1", "models:/tiny/1")


def quick_settings(
    champion: tuple[str, ...] = ("/bin/true",),
    ready_seconds: float = 100.0,
) -> DeploymentSettings:
    """Fake Bentos, ticks of 0.1 s."""
    return DeploymentSettings(
        tick_seconds=0.1,
        ready_seconds=ready_seconds,
        drain_seconds=2.0,
        serve=(sys.executable, str(FAKE_BENTO), "{bento}", "--port", "{port}"),
        champion=champion,
        runs=(),
    )


def quick_spec(
    steps: tuple[int, ...] = (10, 50, 100),
    step_seconds: float = 0.6,
    max_p99_ms: float | None = 2000.0,
) -> RolloutSpec:
    """Steps of under a second, limits that a good candidate keeps on a busy machine."""
    return RolloutSpec(
        steps=steps,
        step_seconds=step_seconds,
        min_requests=20,
        max_p99_ms=max_p99_ms,
        max_error_rate=0.05,
        margin=1.0,
        warmup_seconds=0.3,
        bake_seconds=0.6,
        deadline_seconds=200.0,
    )


def story(events: Sequence[JournalEvent]) -> str:
    """What happened, for the message of an assertion: a line per event, with its verdict."""
    lines = []
    for event in events:
        verdict = event.body.get("verdict") or {}
        told = [event.body.get("phase", ""), event.body.get("weight", ""), verdict.get("why", "")]
        lines.append(" ".join([f"{event.at - events[0].at:6.2f} s", event.kind, *map(str, told)]))
    return "\n".join(lines)


def wait_for_event(name: str, rollout: int, wanted: Callable[[JournalEvent], bool]) -> None:
    """Wait until the rollout has such an event; AssertionError with its story if it ends without.

    It only reads: a daemon that died is not replaced by it.
    """
    found: tuple[JournalEvent, ...] = ()

    def seen() -> bool:
        nonlocal found
        found = deployments.events(name, rollout=rollout)
        return any(map(wanted, found)) or found[-1].kind == ENDED

    with contextlib.suppress(AssertionError):  # the story says more
        wait_until(seen)
    assert any(map(wanted, found)), story(found)


def daemon_of(name: str) -> ProcessRef:
    with Journal(paths.journal()) as journal:
        return journal.processes(name)[DAEMON][0]


def kill_daemon(name: str) -> ProcessRef:
    """SIGKILL the daemon with its watcher; return when it is gone: the next command finds it dead.

    On a busy machine a process lives on for a while after the signal was sent.
    """
    daemon = daemon_of(name)
    processes.kill(daemon)
    wait_until(lambda: not processes.alive(daemon), what="the daemon is gone")
    return daemon


class Load:
    """Clients that send requests one after the other until told to stop.

    Each sends at most `RATE` a second: without a limit they take both cores from the processes
    that they test, and from those of other tests.
    """

    RATE = 100.0

    def __init__(self, port: int, clients: int = 4, timeout: float = 30.0) -> None:
        self.clients = clients
        self._connections = [
            HTTPConnection("127.0.0.1", port, timeout=timeout) for _ in range(clients)
        ]
        self._threads = [
            threading.Thread(target=self._run, args=(each,)) for each in self._connections
        ]
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.answers: Counter[str] = Counter()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread, connection in zip(self._threads, self._connections, strict=True):
            thread.join()
            connection.close()

    @property
    def failed(self) -> int:
        return sum(n for answer, n in self.answers.items() if answer != "200")

    def _run(self, connection: HTTPConnection) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + 1 / self.RATE
            answer = self._send(connection)
            with self._lock:
                self.answers[answer] += 1

    def _send(self, connection: HTTPConnection) -> str:
        try:
            connection.request("POST", "/v2/models/tiny/infer", b"{}")
            response = connection.getresponse()
            response.read()
        except (OSError, HTTPException) as error:
            connection.close()  # the next request opens it again
            return type(error).__name__
        return str(response.status)
