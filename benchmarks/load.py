"""A closed-loop HTTP client that costs little: prebuilt request bytes over raw connections."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import numpy as np

_LENGTH = b"content-length:"


@dataclass(frozen=True, slots=True)
class Load:
    """What a run of `seconds` saw; latencies are in milliseconds."""

    answered: int
    failed: int
    seconds: float
    p50_ms: float
    p99_ms: float


def post(path: str, body: bytes, headers: dict[str, str]) -> bytes:
    """The bytes of a keep-alive POST request."""
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def run_load(port: int, request: bytes, connections: int, seconds: float) -> Load:
    """Send `request` over and over on each of `connections` for `seconds`."""
    return asyncio.run(_run(port, request, connections, seconds))


async def _run(port: int, request: bytes, connections: int, seconds: float) -> Load:
    latencies: list[float] = []
    start = time.perf_counter()
    tasks = [_worker(port, request, start + seconds, latencies) for _ in range(connections)]
    failed = sum(await asyncio.gather(*tasks))
    taken = time.perf_counter() - start
    p50, p99 = np.percentile(latencies, [50, 99]) * 1e3
    return Load(len(latencies), failed, taken, float(p50), float(p99))


async def _worker(port: int, request: bytes, end: float, latencies: list[float]) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    failed = 0
    while (sent := time.perf_counter()) < end:
        writer.write(request)
        if await _read_status(reader) == 200:
            latencies.append(time.perf_counter() - sent)
        else:
            failed += 1
    writer.close()
    await writer.wait_closed()
    return failed


async def _read_status(reader: asyncio.StreamReader) -> int:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line[len(_LENGTH) :])
        for line in head.lower().split(b"\r\n")
        if line.startswith(_LENGTH)
    )
    await reader.readexactly(length)
    return int(head[9:12])
