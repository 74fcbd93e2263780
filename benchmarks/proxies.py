"""What Envoy adds to an answer: latency with one client, CPU with sixteen.

The same small server is asked directly and through Envoy, in turns. The CPU is the proxy's
alone, so the server's speed does not matter to it.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.table import Table

from benchmarks import native
from rollout.domain.spec import Slot
from tests.support.planes import Stage, stage

SECONDS = 3.0
TURNS = 5
CLIENTS = 16
DIRECT, PROXIED = "direct", "Envoy"
_REQUEST = (
    b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"Content-Length: 2\r\nContent-Type: application/json\r\n\r\n{}"
)


@dataclass(frozen=True, slots=True)
class Turn:
    """Latencies of one client in milliseconds, and answers per second of the proxy's CPU."""

    p50_ms: float
    p99_ms: float
    per_cpu_second: float | None


def table(folder: Path) -> Table:
    """The medians of all turns."""
    program = native.build("loadgen", folder)
    request = folder / "request"
    request.write_bytes(_REQUEST)
    shown = Table(title=f"Direct and through Envoy, median of {TURNS} turns of {SECONDS:g} s")
    for name in ("Way", "p50 ms", "p99 ms", "added p50 ms", f"per CPU second, {CLIENTS} clients"):
        shown.add_column(name, justify="left" if name == "Way" else "right")
    turns = _turns(folder, (program, request))
    bare = statistics.median(turn.p50_ms for turn in turns[DIRECT])
    for way, each in turns.items():
        shown.add_row(*_row(way, each, bare))
    return shown


def _row(way: str, turns: list[Turn], bare: float) -> tuple[str, ...]:
    p50, p99 = (statistics.median(getattr(each, name) for each in turns) for name in _LATENCIES)
    rates = [each.per_cpu_second for each in turns if each.per_cpu_second is not None]
    rate = f"{statistics.median(rates):,.0f}" if rates else "-"
    return way, f"{p50:.3f}", f"{p99:.3f}", f"{p50 - bare:+.3f}", rate


_LATENCIES = ("p50_ms", "p99_ms")


def _turns(folder: Path, load: tuple[Path, Path]) -> dict[str, list[Turn]]:
    directory = folder / "envoy"
    directory.mkdir()
    turns: dict[str, list[Turn]] = {DIRECT: [], PROXIED: []}
    with stage(directory) as made:
        (replica,) = made.staff(Slot.BLUE)
        made.share(100)
        for _ in range(TURNS):
            for way, port in ((DIRECT, replica.endpoint.http), (PROXIED, made.ports.listen)):
                turns[way].append(_turn(made, port, load, proxied=way == PROXIED))
    return turns


def _turn(made: Stage, port: int, load: tuple[Path, Path], *, proxied: bool) -> Turn:
    program, request = load
    alone = native.run_load(program, "http", port, request, 1, SECONDS)
    assert made.process is not None
    before = _cpu(made.process.pid)
    many = native.run_load(program, "http", port, request, CLIENTS, SECONDS)
    cost = _cpu(made.process.pid) - before
    if alone.failed or many.failed:
        raise RuntimeError(f"{alone.failed + many.failed} requests failed")
    return Turn(alone.p50_ms, alone.p99_ms, many.answered / cost if proxied else None)


def _cpu(pid: int) -> float:
    """Seconds of CPU of a process and of what it started."""
    main = psutil.Process(pid)
    times = [each.cpu_times() for each in (main, *main.children(recursive=True))]
    return sum(each.user + each.system for each in times)
