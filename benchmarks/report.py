"""The table of benchmarks/online."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

# A client that is busier than this may be what limits the rate. It never limits the cost.
_BUSY = 0.9
Limits = Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Row:
    """One cell: `server` asked one `way` by so many `clients`.

    Rates in answers per second, of time and of the server's CPU; times in milliseconds;
    `client_busy` and `server_busy` are shares of a core; `mebibytes` those of the largest
    process.
    """

    server: str
    way: str
    clients: int
    per_second: float
    p50_ms: float
    p99_ms: float
    per_cpu_second: float
    failed: int
    client_busy: float
    server_busy: float
    mebibytes: float


def reachable(rows: Sequence[Row], limits: Limits, clients: int) -> float:
    """What sockets and ONNX Runtime's best batch together allow, per second of CPU.

    The batch has at most as many rows as there are clients.
    """
    best = max(rate for batch, rate in limits.items() if batch <= clients)
    bare = [row.per_cpu_second for row in rows if row.server == "C echo" and row.clients == clients]
    return 1 / (1 / best + 1 / bare[0]) if bare else best


def print_report(net: str, rows: Sequence[Row], limits: Limits, ours: str) -> None:
    """Print every cell, as a share of what can be reached and as ours over theirs."""
    console = Console(width=150)
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    console.print(f"{net}, {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, load {load}")
    alone = "; ".join(f"{batch}: {rate:,.0f}" for batch, rate in limits.items())
    console.print(f"ONNX Runtime alone, rows per CPU second by batch: {alone}")
    table = Table(box=None, padding=(0, 2, 0, 0))
    names = ("server", "way", "clients", "req/s", "p50 ms", "p99 ms", "per CPU s", "of limit")
    for index, name in enumerate((*names, "ours is x", "client", "server", "MiB", "failed")):
        table.add_column(name, justify="left" if index < 2 else "right", no_wrap=True)
    mine = {(row.way, row.clients): row.per_cpu_second for row in rows if row.server == ours}
    for row in rows:
        # What has no such way of its own is held against our binary one.
        other = mine.get((row.way, row.clients), mine.get(("V2 binary", row.clients)))
        table.add_row(
            row.server,
            row.way,
            str(row.clients),
            f"{row.per_second:,.0f}",
            f"{row.p50_ms:.2f}",
            f"{row.p99_ms:.2f}",
            f"{row.per_cpu_second:,.0f}",
            f"{row.per_cpu_second / reachable(rows, limits, row.clients):.1%}",
            "-" if row.server == ours or other is None else f"{other / row.per_cpu_second:.2f}",
            f"{row.client_busy:.0%}" + ("!" if row.client_busy > _BUSY else ""),
            f"{row.server_busy:.0%}",
            f"{row.mebibytes:.0f}",
            str(row.failed),
        )
    console.print(table)
