"""Steady traffic to a deployment: requests sent, failures, and the model that answered."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

CLIENTS = 6
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
    """Background threads that send single images over V2 HTTP at a steady rate.

    They use the standard library's client, which takes a sixth of the CPU time of httpx. Use as a
    context manager; `cut` ends the current window of counts and starts another.
    """

    def __init__(self, url: str, images: NDArray[np.float32], requests_per_second: float) -> None:
        self._url = urlsplit(url)
        self._bodies = [request_body(image) for image in images]
        self._pause = CLIENTS / requests_per_second
        self._window = TrafficWindow()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"traffic-{number}")
            for number in range(CLIENTS)
        ]

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
        for thread in self._threads:
            thread.join()

    def cut(self) -> TrafficWindow:
        """Return the counts since the last cut and start again from zero."""
        with self._lock:
            window, self._window = self._window, TrafficWindow()
        return window

    def _run(self, number: int) -> None:
        due = time.monotonic() + self._pause * number / CLIENTS
        bodies = itertools.cycle(self._bodies[number::CLIENTS])
        connection = HTTPConnection(self._url.netloc, timeout=TIMEOUT_SECONDS)
        with closing(connection):
            while not self._stop.wait(max(0.0, due - time.monotonic())):
                self._send(connection, next(bodies))
                due = max(due + self._pause, time.monotonic() - self._pause)

    def _send(self, connection: HTTPConnection, body: bytes) -> None:
        started = time.monotonic()
        version = None
        try:
            connection.request("POST", self._url.path, body, {"content-type": "application/json"})
            response = connection.getresponse()
            content = response.read()
            if response.status == 200:
                version = str(json.loads(content)["model_version"])
        except (OSError, HTTPException, KeyError, ValueError):
            connection.close()  # the next request opens it again
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
