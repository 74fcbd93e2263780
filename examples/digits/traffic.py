"""Steady traffic to a deployment: requests sent, failures, and the model that answered."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import httpx

HTTP_WORKERS = 6
TIMEOUT_SECONDS = 5.0


@dataclass(slots=True)
class TrafficWindow:
    """Counts of a time window. `latencies` are seconds, of answered requests only."""

    sent: int = 0
    failed: int = 0
    latencies: list[float] = field(default_factory=list)
    answered_by: Counter[str] = field(default_factory=Counter)

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the latencies in milliseconds; NaN without answers."""
        if not self.latencies:
            return float("nan")
        return float(np.percentile(self.latencies, percent)) * 1e3


class LoadThread:
    """A background thread that sends single images over V2 HTTP at a steady rate.

    Use as a context manager; `cut` ends the current window of counts and starts another.
    """

    def __init__(self, url: str, images: NDArray[np.float32], requests_per_second: float) -> None:
        self._url = url
        self._bodies = [request_body(image) for image in images]
        self._pause = HTTP_WORKERS / requests_per_second
        self._window = TrafficWindow()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="traffic")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def cut(self) -> TrafficWindow:
        """Return the counts since the last cut and start again from zero."""
        with self._lock:
            window, self._window = self._window, TrafficWindow()
        return window

    async def _run(self) -> None:
        import httpx

        limits = httpx.Limits(max_connections=HTTP_WORKERS)
        async with httpx.AsyncClient(limits=limits, timeout=TIMEOUT_SECONDS) as client:
            await asyncio.gather(*(self._worker(client, n) for n in range(HTTP_WORKERS)))

    async def _worker(self, client: httpx.AsyncClient, number: int) -> None:
        await asyncio.sleep(self._pause * number / HTTP_WORKERS)
        position = number
        due = time.monotonic()
        while not self._stop.is_set():
            await self._send(client, self._bodies[position % len(self._bodies)])
            position += HTTP_WORKERS
            due = max(due + self._pause, time.monotonic() - self._pause)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _send(self, client: httpx.AsyncClient, body: bytes) -> None:
        import httpx

        started = time.monotonic()
        version = None
        try:
            response = await client.post(
                self._url, content=body, headers={"content-type": "application/json"}
            )
            if response.status_code == 200:
                version = str(response.json()["model_version"])
        except (httpx.HTTPError, KeyError, ValueError):
            version = None
        with self._lock:
            self._window.sent += 1
            if version is None:
                self._window.failed += 1
            else:
                self._window.latencies.append(time.monotonic() - started)
                self._window.answered_by[version] += 1


def request_body(image: NDArray[np.float32]) -> bytes:
    """Return the V2 JSON request for one image [1, 8, 8]."""
    tensor = {
        "name": "image",
        "shape": [1, *image.shape],
        "datatype": "FP32",
        "data": image.ravel().tolist(),
    }
    return json.dumps({"inputs": [tensor]}).encode()
