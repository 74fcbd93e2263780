"""A closed-loop HTTP client that costs little: prebuilt request bytes over raw connections."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import uvloop

_LENGTH = b"content-length: "


@dataclass(frozen=True, slots=True)
class Load:
    """What a run of `seconds` saw; latencies are in milliseconds."""

    answered: int
    failed: int
    seconds: float
    p50_ms: float
    p99_ms: float


@dataclass(slots=True)
class _Tally:
    """What all connections of a run saw, latencies in seconds; the run is over at `end`."""

    end: float
    latencies: list[float] = field(default_factory=list)
    failed: int = 0


def post(path: str, body: bytes, headers: dict[str, str]) -> bytes:
    """The bytes of a keep-alive POST request."""
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def run_load(port: int, request: bytes, connections: int, seconds: float) -> Load:
    """Send `request` over and over on each of `connections` for `seconds`."""
    return uvloop.run(_run(port, request, connections, seconds))


async def _run(port: int, request: bytes, connections: int, seconds: float) -> Load:
    loop = asyncio.get_running_loop()
    start = time.perf_counter()
    tally = _Tally(start + seconds)
    clients = [
        (await loop.create_connection(lambda: _Client(request, tally), "127.0.0.1", port))[1]
        for _ in range(connections)
    ]
    await asyncio.gather(*(client.closed for client in clients))
    taken = time.perf_counter() - start
    p50, p99 = np.percentile(tally.latencies or [0.0], [50, 99]) * 1e3
    return Load(len(tally.latencies), tally.failed, taken, float(p50), float(p99))


class _Client(asyncio.Protocol):
    """One connection: the next request goes out when the last one's answer is whole."""

    def __init__(self, request: bytes, tally: _Tally) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._tally = tally
        self._buffer = b""
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None or time.perf_counter() < self._tally.end:
            self._tally.failed += 1
        self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        start = self._buffer.index(_LENGTH) + len(_LENGTH)
        length = int(self._buffer[start : self._buffer.index(b"\r", start)])
        if len(self._buffer) < end + 4 + length:
            return
        now = time.perf_counter()
        if self._buffer.startswith(b"HTTP/1.1 200"):
            self._tally.latencies.append(now - self._sent)
        else:
            self._tally.failed += 1
        self._buffer = b""
        if now < self._tally.end:
            self._send()
        else:
            self._transport.close()

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(self._request)
