"""Measure and print: `python -m benchmarks.stream`."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table

from benchmarks.stream.brokers import SCHEMES, Broker, broker, fill, values
from benchmarks.stream.engines import Spec
from benchmarks.workloads import make_workload
from mlctl.core.clock import SystemClock
from mlctl.services.stream.answer_headers import SOURCE
from mlctl.services.stream.base import ConnectionRequest, Message, Outgoing, StreamUrl
from mlctl.services.stream.transports import transport_of
from tests.support.wait import wait_until

_STEPS = 50
# Messages in a batch, the same for every engine.
_BATCH = 4096
# Before latency is measured so many are answered, some at a time.
_WARM, _ROUNDS, _KEY = 2000, 4, b"warm"


def text(url: StreamUrl | None) -> str:
    """As a user writes it."""
    assert url is not None
    query = "&".join(f"{name}={value}" for name, value in url.options.items())
    return f"{url.scheme}://{url.address}{'?' if query else ''}{query}#{url.topic}"


class StreamBenchmark:
    """One broker, one form of payload."""

    def __init__(
        self, stream: Broker, bundle: Path, payload: str, options: argparse.Namespace
    ) -> None:
        self._stream = stream
        self._bundle = bundle
        self._payload = payload
        self._options = options

    def spec(self, engine: str, request: ConnectionRequest, count: int) -> Spec:
        """What a process of that engine is to do."""
        urls = (text(request.source), text(request.answers), text(request.dead))
        model, batch = str(self._bundle), int(self._options.batch)
        return Spec(engine, *urls, request.group, self._payload, model, count, batch)

    def throughput(self, engine: str) -> dict[str, float]:
        """The median by rate of some rounds over a full stream."""
        found = []
        for _ in range(self._options.rounds):
            request = self._stream.urls()
            count = self._options.messages
            fill(request.source, values(self._payload, count))
            found.append(self._run(self.spec(engine, request, count)))
        found.sort(key=lambda each: each["messages"] / each["seconds"])
        return found[len(found) // 2]

    def latency(self, rate: float) -> tuple[float, float]:
        """p50 and p99 in milliseconds at `rate` messages a second, by the broker's times."""
        request = self._stream.urls()
        count = int(min(rate * self._options.seconds, self._options.messages))
        sender = threading.Thread(target=send_at, args=(request.source, self._payload, count, rate))
        assert request.answers is not None
        warm = values(self._payload, _WARM)
        with self._begun(self.spec("ours", request, _WARM + 1 + count)) as process:
            for _ in range(_ROUNDS):
                fill(request.source, warm[: _WARM // _ROUNDS], _KEY)
            wait_until(lambda: len(answers_at(request)) == _WARM)
            sender.start()
            sender.join()
            process.communicate(timeout=300)
        sent = {
            f"{each.partition}/{each.offset}": each.time_ms
            for each in transport_of(request.source).browse(request.source)
        }
        # Not what came while the process was still learning how long batches take.
        took = [
            each.time_ms - sent[(dict(each.headers)[SOURCE] or b"").decode().split("/", 1)[1]]
            for each in answers_at(request)
            if each.key != _KEY and int(each.key or b"0") > count / 4
        ]
        p50, p99 = np.percentile(took, [50, 99])
        return float(p50), float(p99)

    @contextmanager
    def _begun(self, spec: Spec) -> Iterator[subprocess.Popen[bytes]]:
        command = [
            sys.executable,
            "-m",
            "benchmarks.stream.engines",
            orjson.dumps(asdict(spec)).decode(),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
            try:
                yield process
            finally:
                process.kill()

    def _run(self, spec: Spec) -> dict[str, float]:
        with self._begun(spec) as process:
            out, _ = process.communicate(timeout=600)
        if process.returncode:
            raise SystemExit(f"{spec.engine} failed")
        found: dict[str, float] = orjson.loads(out.splitlines()[-1])
        return found


def answers_at(request: ConnectionRequest) -> list[Message]:
    """The answers that are there."""
    assert request.answers is not None
    return [*transport_of(request.answers).browse(request.answers)]


def send_at(url: StreamUrl, payload: str, count: int, rate: float) -> None:
    """Send `count` messages, some each 20 ms."""
    messages, clock = values(payload, count), SystemClock()
    part = max(1, int(rate / _STEPS))
    wait = threading.Event()
    with transport_of(url).open_producer(url) as producer:
        # A client of Kafka waits half a second for its number.
        producer.publish([Outgoing(messages[0], _KEY)])
        began = clock.monotonic()
        for start in range(0, count, part):
            wait.wait(max(0.0, began + start / rate - clock.monotonic()))
            those = enumerate(messages[start : start + part], start)
            producer.publish([Outgoing(value, b"%d" % n) for n, value in those])


def engines_of(scheme: str, payload: str, options: argparse.Namespace) -> list[str]:
    """Return the engines to compare on a broker."""
    bare = [] if scheme == "sqlite" else [scheme]
    by_hand = ["by hand"] if (scheme, payload) == ("kafka", "json") else []
    engines = ("ours", "link", *bare, *by_hand)
    return [engine for engine in engines if engine in (options.only or [engine])]


def measure(scheme: str, payload: str, options: argparse.Namespace, table: Table) -> dict[str, Any]:
    """All engines on one broker."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="mlctl-stream-") as scratch:
        workload = make_workload("light", Path(scratch) / "bundle")
        with broker(scheme, Path(scratch) / "broker") as stream:
            bench = StreamBenchmark(stream, workload.bundle.root, payload, options)
            for engine in engines_of(scheme, payload, options):
                found[engine] = result = bench.throughput(engine)
                if engine == "ours":
                    p50, p99 = bench.latency(result["messages"] / result["seconds"] / 2)
                    result |= {"p50": p50, "p99": p99}
                add_row(table, scheme, payload, engine, result)
    return found


def add_row(table: Table, scheme: str, payload: str, engine: str, result: dict[str, float]) -> None:
    """Print the row of one engine."""
    rate = result["messages"] / result["seconds"]
    cost = 1e6 * result["cpu"] / result["messages"]
    shown = f"{result['p50']:.0f} / {result['p99']:.0f}" if "p50" in result else ""
    row = (scheme, payload, engine, f"{rate:,.0f}", f"{cost:.1f}", shown)
    print(*row, file=sys.stderr, flush=True)  # The table comes only at the end.
    table.add_row(*row)


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stream", description=__doc__)
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES))
    parser.add_argument("--payloads", nargs="+", choices=("raw", "json"), default=["raw", "json"])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=_BATCH)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of the latency's run")
    parser.add_argument("--only", nargs="+", help="of: ours, link, the client, by hand")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # Brokers and servers end as well.
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("broker", "payload", "engine", "messages/s", "CPU us", "p50 / p99 ms"):
        table.add_column(
            name, justify="left" if name in {"broker", "payload", "engine"} else "right"
        )
    found: dict[str, Any] = {}
    for scheme in options.schemes:
        for payload in options.payloads:
            found[f"{scheme} {payload}"] = measure(scheme, payload, options, table)
    Console(width=100).print(table)
    load = [round(value, 1) for value in os.getloadavg()]
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, load {load}")
    if options.json is not None:
        options.json.write_bytes(orjson.dumps(found))


if __name__ == "__main__":
    main()
