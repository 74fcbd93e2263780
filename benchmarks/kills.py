"""Promotions of a good candidate: undisturbed and taken back, or with one process killed (SIGKILL).

A real daemon, Envoy and small servers, clients in closed loops. Each promotion with a kill has one
victim at a random moment: the client that started it, the daemon, its watcher, Envoy, a live or a
candidate server. Only where the candidate died may the rollout go back.
"""

from __future__ import annotations

import http.client
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import psutil

from benchmarks.result import BenchmarkResult
from mlctl.core.ports import free_ports
from mlctl.rollout.client import deployments
from mlctl.rollout.domain.process_ref import DAEMON, PROXY
from mlctl.rollout.domain.spec import DeploymentSettings, Outcome, Revision, RolloutSpec, Slot
from mlctl.rollout.drivers.local import processes
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.records import Rollout

_NAME = "killed"
_SERVER = str(Path(__file__).with_name("faulty_server.py"))
_CLIENTS = 4
_TIMEOUT_SECONDS = 60.0
_END_SECONDS = 90.0
# A promotion takes about as long, with the start of its candidate.
_MOMENTS_SECONDS = 4.0
_SPEC = RolloutSpec(
    steps=(50, 100), step_seconds=1.0, bake_seconds=1.0, warmup_seconds=0.5, keep_previous_seconds=0
)
_KEPT_WARM = replace(_SPEC, keep_previous_seconds=600)
_MLCTL = (sys.executable, "-m", "mlctl.cli.main")
_PROMOTE = (
    "from benchmarks.kills import promote; from mlctl.rollout.client import deployments;"
    "list(deployments.follow('{name}', promote({number})))"
)


@dataclass
class Clients:
    """Clients that send one request after the other; what they got since `begin`."""

    port: int
    sent: int = 0
    failed: int = 0
    outage: float = 0.0
    last_answers: dict[bytes, float] = field(default_factory=dict)  # each body, when it came last
    _answered: float = 0.0
    _stop: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> None:
        """Count from here on."""
        with self._lock:
            self.sent = self.failed = 0
            self.outage, self._answered = 0.0, time.monotonic()

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send while the block runs."""
        threads = [threading.Thread(target=self._send) for _ in range(_CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop = True
            for thread in threads:
                thread.join()

    def _send(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_TIMEOUT_SECONDS)
        with closing(connection):
            while not self._stop:
                body = self._request(connection)
                self._count(body)
                if body is None:
                    time.sleep(0.01)  # a client that is rejected does not come back at once

    def _request(self, connection: http.client.HTTPConnection) -> bytes | None:
        try:
            connection.request("POST", "/predict", b"{}")
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            return None
        return body if response.status == http.HTTPStatus.OK else None

    def _count(self, body: bytes | None) -> None:
        with self._lock:
            now = time.monotonic()
            self.sent += 1
            if body is not None:
                self.last_answers[body] = now
                self.outage = max(self.outage, now - self._answered)
                self._answered = now
            else:
                self.failed += 1


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill: how the rollout ended and why, and what the clients noticed; the outage in s."""

    outcome: Outcome | None
    why: str
    sent: int
    failed: int
    outage: float


def promote(number: int, spec: RolloutSpec = _SPEC) -> int:
    """Start the rollout to the revision with that number; return its id."""
    return deployments.promote(_NAME, _revision(number), spec)


def _revision(number: int) -> Revision:
    digest = f"{number:x}".rjust(4, "a")
    return Revision(f"tiny:{digest}", digest.ljust(64, "0"), "tiny", "1", "models:/tiny/1")


def _kill_role(role: str) -> None:
    with Journal(paths.journal()) as journal:
        found = journal.processes(_NAME).get(role)
    if found is not None:  # else it does not run at this moment
        _kill_process(found[0].pid)


def _kill_watcher() -> None:
    with Journal(paths.journal()) as journal:
        daemon = journal.processes(_NAME)[DAEMON][0]
    _kill_process(psutil.Process(daemon.pid).ppid())


def _kill_process(pid: int) -> None:
    try:
        psutil.Process(pid).kill()
    except psutil.NoSuchProcess:
        return


def _kill_slot(*, live: bool) -> None:
    with Journal(paths.journal()) as journal:
        slot: Slot = journal.deployment(_NAME).slot
    _kill_role(f"{slot if live else slot.other}/0")


CLIENT = "the client of the promotion"
CANDIDATE = "a candidate server"
_VICTIMS: dict[str, Callable[[], None]] = {
    "the daemon": lambda: _kill_role(DAEMON),
    "the daemon's watcher": _kill_watcher,
    "Envoy": lambda: _kill_role(PROXY),
    "the live server": lambda: _kill_slot(live=True),
    CANDIDATE: lambda: _kill_slot(live=False),
}


def _run(victim: str, number: int, moment: float, clients: Clients) -> Kill:
    """Promote the revision `number`, kill after `moment` seconds, and wait for the end."""
    clients.begin()
    program = _PROMOTE.format(name=_NAME, number=number)
    before = deployments.history(_NAME)
    with subprocess.Popen([sys.executable, "-c", program]) as client:
        _wait(lambda: len(deployments.history(_NAME)) > len(before), "the rollout is recorded")
        time.sleep(moment)
        if victim == CLIENT:
            client.send_signal(signal.SIGKILL)
        else:
            _VICTIMS[victim]()
        ended = _await_end()
        client.kill()
    _wait(_serves, "the live server is back")
    ruling = ended.progress.ruling
    why = "" if ruling is None else f"{ruling.gate}: {ruling.why}"
    return Kill(ended.outcome, why, clients.sent, clients.failed, clients.outage)


def _await_end() -> Rollout:
    """Return the newest rollout once it has ended, or after the longest wait."""
    deadline = time.monotonic() + _END_SECONDS
    while True:
        (status,) = deployments.status(_NAME)  # replaces a daemon that died with its watcher
        if status.rollout is None or time.monotonic() > deadline:
            return deployments.history(_NAME)[0]
        time.sleep(0.1)


def _serves() -> bool:
    (status,) = deployments.status(_NAME)
    return bool(status.healthy and status.healthy[status.deployment.slot])


def _wait(condition: Callable[[], bool], name: str) -> None:
    deadline = time.monotonic() + _END_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name}: not within {_END_SECONDS:g} s")
        time.sleep(0.05)


def _orphans() -> int:
    """Return how many processes of the deployment run, after it was taken down."""
    prefix, found = str(paths.directory(_NAME)), 0
    for process in psutil.process_iter():
        try:
            token = process.environ().get(processes.TOKEN_VARIABLE, "")
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        found += token.startswith(f"{prefix}:")
    return found


@contextmanager
def _deployed() -> Iterator[Clients]:
    """Start a deployment under load; stop both at the end."""
    (port,) = free_ports(1)
    settings = DeploymentSettings(
        drain_seconds=2.0,
        serve=(sys.executable, _SERVER, "{bento}", "--port", "{port}"),
        champion=("/bin/true",),
        runs=(),
    )
    deployments.up(_NAME, _revision(0), port, settings=settings)
    try:
        clients = Clients(port)
        with clients.sending():
            yield clients
    finally:
        deployments.down(_NAME)


def measure_promotions(count: int, result: BenchmarkResult) -> None:
    """Add the table of `count` promotions of a good candidate, each taken back by the command."""
    outcomes: list[Outcome | None] = []
    last_answers, commands = [], []
    with _deployed() as clients:
        clients.begin()
        for number in range(1, count + 1):
            promote(number, _KEPT_WARM)
            outcomes.append(_await_end().outcome)
            if outcomes[-1] is not Outcome.PROMOTED:
                continue
            started = time.monotonic()
            subprocess.run([*_MLCTL, "rollback", _NAME], check=True, stdout=subprocess.DEVNULL)
            commands.append(time.monotonic() - started)
            _await_end()
            answer = json.dumps({"model_version": _revision(number).digest}).encode()
            last_answers.append(clients.last_answers[answer] - started)
    table = result.table(
        f"{count} promotions of a good candidate, each taken back by `mlctl rollback` while the "
        f"previous version is warm; {_CLIENTS} clients, one request at a time",
        *("promoted", "rolled back", "requests", "failed", "longest outage ms"),
        *("last answer of the candidate after s, median", "max", "the command took s, median"),
    )
    table.add(
        *(outcomes.count(Outcome.PROMOTED), outcomes.count(Outcome.ROLLED_BACK)),
        *(clients.sent, clients.failed, 1000.0 * clients.outage),
        *(median(last_answers), max(last_answers), median(commands)),
    )


def measure(kills: int, seed: int, result: BenchmarkResult) -> None:
    """Add the table of `kills` kills, by victim in turn, at moments drawn from `seed`."""
    rng = random.Random(seed)
    victims = (CLIENT, *_VICTIMS)
    found: dict[str, list[Kill]] = {victim: [] for victim in victims}
    with _deployed() as clients:
        for number in range(kills):
            victim = victims[number % len(victims)]
            moment = rng.uniform(0.0, _MOMENTS_SECONDS)
            found[victim].append(_run(victim, number + 1, moment, clients))
    _tabulate(found, _orphans(), result)


def _tabulate(found: dict[str, list[Kill]], orphans: int, result: BenchmarkResult) -> None:
    total = sum(map(len, found.values()))
    table = result.table(
        f"{total} promotions of a good candidate, one process killed in each; {orphans} processes "
        f"left afterwards; {_CLIENTS} clients, one request at a time",
        *("killed", "kills", "promoted", "rolled back", "wrong ends", "requests", "failed"),
        *("median outage ms", "longest outage ms"),
    )
    wrong = []
    for victim, runs in found.items():
        good = {Outcome.PROMOTED} | ({Outcome.ROLLED_BACK} if victim == CANDIDATE else set())
        bad = [run for run in runs if run.outcome not in good]
        wrong += [(victim, run.outcome or "no end", run.why) for run in bad]
        outcomes = [run.outcome for run in runs]
        outages = [1000.0 * run.outage for run in runs] or [0.0]
        table.add(
            *(victim, len(runs), outcomes.count(Outcome.PROMOTED)),
            *(outcomes.count(Outcome.ROLLED_BACK), len(bad)),
            *(sum(run.sent for run in runs), sum(run.failed for run in runs)),
            *(median(outages), max(outages)),
        )
    if wrong:
        ends = result.table("Wrong ends", "killed", "ended", "verdict")
        for row in wrong:
            ends.add(*row)
