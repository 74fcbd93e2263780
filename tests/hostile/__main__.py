"""`python -m tests.hostile`: 30 hostile connections beside one honest client, in 3 minutes at most.

The server has one core, all clients have another. Each round has two phases, one after the other:
the honest client beside 30 busy honest connections, and beside 30 hostile ones. Its latency is
compared in processor time of the server, so that other work of the machine changes no result.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.loadgen import LoadTarget, build, closed_command, grpc_call
from benchmarks.protocols import Protocol
from benchmarks.servers import Cores, RunningServer, deployment, mlctl_server, running
from benchmarks.workloads import NetBundle, make_workload
from mlctl.loadtest.inputs import post
from tests.hostile.attacks import ATTACKS
from tests.hostile.honest import Latencies, WorkClock, measure
from tests.hostile.judge import judge, p99_ms
from tests.hostile.senders import send_all

CONNECTIONS = 30
_TOKEN = "a-token-of-the-hostile-run"
_SAMPLE_SECONDS = 0.1
# What the clients of a phase have before the honest one begins, and after it.
_LEAD_SECONDS = 0.3


def main() -> int:
    """1 if a scenario fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of each scenario")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each phase")
    parser.add_argument("--only", choices=["serve", "up"], help="one way to start the server")
    options = parser.parse_args()
    cores, failed = Cores.pick(), False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        workload = make_workload("tiny", folder / "net")
        programs = _build(folder)
        for way in [options.only] if options.only else ["serve", "up"]:
            for token in (None, _TOKEN):
                with _started(way, workload, folder, cores, token) as server, cores.for_client():
                    label = f"mlctl {way}{', token' if token else ''}"
                    phases = _Phases(server, programs, token, options.seconds)
                    failed |= phases.run(label, options.rounds)
    return int(failed)


def _build(folder: Path) -> dict[str, Path]:
    """Return a load generator for each transport: its files lie beside it."""
    program = build("loadgen", folder)
    found = {}
    for transport in ("http", "grpc"):
        found[transport] = folder / transport / program.name
        found[transport].parent.mkdir()
        shutil.copy(program, found[transport])
    return found


@contextmanager
def _started(
    way: str, workload: NetBundle, folder: Path, cores: Cores, token: str | None
) -> Iterator[RunningServer]:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        os.environ.pop("MLCTL_TOKEN_FILE", None)
        if token is not None:
            tokens = home / "tokens"
            tokens.write_text(f"{token}\n")
            tokens.chmod(0o600)
            os.environ["MLCTL_TOKEN_FILE"] = str(tokens)
        if way == "up":
            yield stack.enter_context(deployment(workload, home, cores))
        else:
            yield stack.enter_context(running(mlctl_server(workload, home), cores))


class _Phases:
    """The phases of one scenario."""

    def __init__(
        self,
        server: RunningServer,
        programs: Mapping[str, Path],
        token: str | None,
        seconds: float,
    ) -> None:
        self._server = server
        self._programs = programs
        self._seconds = seconds
        binary, _, call = server.server.protocols
        self._targets = {
            each.transport: _target(each, server.server.port_of(each), token)
            for each in (binary, call)
        }
        self._ports = {name: each.port for name, each in self._targets.items()}
        self._clock = WorkClock(server.process_ids())
        self._mebibytes: list[float] = []

    def run(self, label: str, rounds: int) -> bool:
        """Run the phases, print their figures, and return whether the scenario fails."""
        try:
            self._beside_busy()  # fills caches and the allocator's arenas
            self._beside_hostile()
            self._mebibytes = [self._server.mebibytes()]
            pairs = [(self._beside_busy(), self._beside_hostile()) for _ in range(rounds)]
        except (OSError, RuntimeError) as error:
            print(f"{label}: FAILED: the honest client got no answer: {error!r}", flush=True)
            return True
        before, most = self._mebibytes[0], max(self._mebibytes)
        failed = False
        for transport in self._targets:
            busy, hostile = (_joined(each, transport) for each in zip(*pairs, strict=True))
            reasons = judge(busy.work, hostile.work, self._mebibytes)
            failed = failed or bool(reasons)
            ratio = p99_ms(hostile.work) / p99_ms(busy.work)
            print(
                f"{label}, {transport}: p99 {p99_ms(busy.work):.0f} ms of work "
                f"({p99_ms(busy.wall):.0f} ms) beside {CONNECTIONS} honest clients, "
                f"{p99_ms(hostile.work):.0f} ms ({p99_ms(hostile.wall):.0f} ms) beside "
                f"{CONNECTIONS} hostile ones, ratio {ratio:.2f}, {len(hostile.work)} requests; "
                f"{before:.0f} MiB, at most {most:.0f}; load {os.getloadavg()[0]:.1f}"
                f"{''.join(f'; FAILED: {each}' for each in reasons)}",
                flush=True,
            )
        return failed

    def _beside_busy(self) -> Latencies:
        seconds = self._seconds + 2 * _LEAD_SECONDS
        half = CONNECTIONS // 2
        commands = [
            closed_command(self._programs[transport], target, half, seconds)
            for transport, target in self._targets.items()
        ]
        clients = [
            subprocess.Popen(["nice", *map(str, each)], stdout=subprocess.DEVNULL)
            for each in commands
        ]
        try:
            return self._measure()
        finally:
            for client in clients:
                client.wait()

    def _beside_hostile(self) -> Latencies:
        attacks = [ATTACKS[number % len(ATTACKS)] for number in range(CONNECTIONS)]
        seconds = self._seconds + 2 * _LEAD_SECONDS
        # An instance of its own: the honest client must not wait for its interpreter.
        sender = multiprocessing.get_context("fork").Process(
            target=_send, args=(attacks, self._ports, seconds)
        )
        sender.start()
        stop = threading.Event()
        sampler = threading.Thread(target=self._sample, args=(stop,))
        sampler.start()
        try:
            return self._measure()
        finally:
            stop.set()
            sampler.join()
            sender.join()

    def _measure(self) -> Latencies:
        threading.Event().wait(_LEAD_SECONDS)
        return measure(self._targets, self._clock, self._seconds)

    def _sample(self, stop: threading.Event) -> None:
        while not stop.wait(_SAMPLE_SECONDS):
            self._mebibytes.append(self._server.mebibytes())


class _Seconds(NamedTuple):
    wall: list[float]
    work: list[float]


def _joined(phases: Sequence[Latencies], transport: str) -> _Seconds:
    """Return the latencies of all phases."""
    return _Seconds(
        [each for phase in phases for each in phase.wall[transport]],
        [each for phase in phases for each in phase.work[transport]],
    )


def _send(*arguments: object) -> None:
    os.nice(10)
    send_all(*arguments)  # type: ignore[arg-type]


def _target(protocol: Protocol, port: int, token: str | None) -> LoadTarget:
    headers = dict(protocol.headers)
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    if protocol.transport == "grpc":
        request = grpc_call(protocol.path, protocol.body, headers)
    else:
        request = post(protocol.path, protocol.body, {"Host": "127.0.0.1", **headers})
    return LoadTarget(protocol.transport, port, request)


if __name__ == "__main__":
    sys.exit(main())
