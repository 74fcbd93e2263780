"""What several rollout tests need: revisions of fake Bentos, quick settings, live load."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from rollout.model import Revision, RolloutSpec, Settings

FAKE_BENTO = Path(__file__).with_name("fake_bento.py")


def revision(tag: str) -> Revision:
    """The revision of a fake Bento; its digest is the tag's version, filled with zeros."""
    digest = tag.partition("?")[0].partition(":")[2].ljust(64, "0")
    return Revision(tag, digest, "tiny-optimized", "1", "models:/tiny/1")


def quick_settings(
    champion: tuple[str, ...] = ("/bin/true",),
    ready_seconds: float = 20.0,
    max_unwatched_seconds: float = 30.0,
) -> Settings:
    """Fake Bentos, ticks of 0.2 s."""
    return Settings(
        tick_seconds=0.2,
        ready_seconds=ready_seconds,
        max_unwatched_seconds=max_unwatched_seconds,
        drain_seconds=2.0,
        alias_retry_seconds=0.5,
        serve=(sys.executable, str(FAKE_BENTO), "{bento}", "--port", "{port}"),
        champion=champion,
    )


def quick_spec(
    steps: tuple[int, ...] = (10, 50, 100),
    step_seconds: float = 0.6,
    deadline_seconds: float = 60.0,
    max_p99_ms: float | None = 200.0,
) -> RolloutSpec:
    """Steps of under a second, limits that a noisy machine keeps."""
    return RolloutSpec(
        steps=steps,
        step_seconds=step_seconds,
        min_requests=20,
        max_p99_ms=max_p99_ms,
        max_error_rate=0.05,
        warmup_seconds=0.3,
        bake_seconds=0.6,
        deadline_seconds=deadline_seconds,
    )


class Load:
    """Clients that send requests one after the other until told to stop."""

    def __init__(self, port: int, clients: int = 4, timeout: float = 5.0) -> None:
        self._url = f"http://127.0.0.1:{port}/v2/models/tiny/infer"
        self._timeout = timeout
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]
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
        for thread in self._threads:
            thread.join()

    @property
    def failed(self) -> int:
        return sum(n for answer, n in self.answers.items() if answer != "200")

    def _run(self) -> None:
        with httpx.Client(trust_env=False, timeout=self._timeout) as client:
            while not self._stop.is_set():
                answer = self._send(client)
                with self._lock:
                    self.answers[answer] += 1

    def _send(self, client: httpx.Client) -> str:
        try:
            return str(client.post(self._url, content=b"{}").status_code)
        except httpx.HTTPError as error:
            return type(error).__name__
