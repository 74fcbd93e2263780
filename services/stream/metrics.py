"""Prometheus metrics of a run, updated from its events once per batch."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    make_wsgi_app,
)
from prometheus_client.exposition import ThreadingWSGIServer

from mlctl.core.clock import Clock, SystemClock
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.tokens import TOKEN, TOKEN_FILE
from mlctl.services.access import Access
from mlctl.services.stream.events import CommittedBatch, StreamEvent, StreamPhase

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

_Metric = TypeVar("_Metric", Counter, Gauge, Histogram)
OnEvent = Callable[[StreamEvent], None]
_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
_MESSAGES = (1, 4, 16, 64, 256, 1024, 4096, 16_384)


class StreamMetrics:
    """Counts the events of one run of `model`; for one thread."""

    def __init__(self, model: str, registry: CollectorRegistry, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._seen_rebalances = 0
        self._partitions: frozenset[str] = frozenset()
        self._model = model

        def metric(kind: type[_Metric], name: str, text: str, *labels: str, **more: Any) -> _Metric:
            name = f"mlctl_stream_{name}"
            return kind(name, text, ("model", *labels), registry=registry, **more)

        messages = metric(
            Counter, "messages", "Committed messages by `outcome`: `answer`, `dead`.", "outcome"
        )
        self._answers = messages.labels(model, "answer")
        self._dead = messages.labels(model, "dead")
        self._reasons = metric(
            Counter, "dead_letters", "Dead letters by `reason`, an error code.", "reason"
        )
        self._rows = metric(Counter, "rows", "Scored rows.").labels(model)
        self._rebalances = metric(Counter, "rebalances", "Partitions gained or lost.").labels(model)
        self._size = metric(
            Histogram, "batch_messages", "Messages of each batch.", buckets=_MESSAGES
        ).labels(model)
        self._wait = metric(
            Histogram,
            "wait_seconds",
            "Seconds that a batch's oldest message waited in this process.",
            buckets=_SECONDS,
        ).labels(model)
        self._stages = metric(
            Histogram,
            "stage_seconds",
            "Seconds of each batch by `stage`: `decode`, `score`, `encode`, `commit`.",
            "stage",
            buckets=_SECONDS,
        )
        self._lag = metric(
            Gauge, "lag_messages", "Messages behind, by `partition` of this process.", "partition"
        )
        self._paused = metric(Gauge, "paused", "1 while it waits for a broker or a model.").labels(
            model
        )
        self._last = metric(
            Gauge, "last_commit_timestamp_seconds", "Time of the newest commit."
        ).labels(model)

    def on_event(self, event: StreamEvent) -> None:
        """Update the metrics."""
        if event.lag is not None:
            self._update_lag(event.lag)
        self._rebalances.inc(max(0, event.rebalances - self._seen_rebalances))
        self._seen_rebalances = event.rebalances
        self._paused.set(event.phase is StreamPhase.PAUSED)
        if event.batch is not None:
            self._update_batch(event.batch)

    def _update_batch(self, batch: CommittedBatch) -> None:
        self._answers.inc(batch.answers)
        self._dead.inc(batch.dead)
        self._rows.inc(batch.rows)
        for reason, count in batch.reasons.items():
            self._reasons.labels(self._model, reason).inc(count)
        self._size.observe(batch.messages)
        self._wait.observe(batch.wait_s)
        for stage, seconds in batch.stages.items():
            self._stages.labels(self._model, stage).observe(seconds)
        self._last.set(self._clock.wall())

    def _update_lag(self, lag: Mapping[str, int]) -> None:
        """Another consumer reports the partitions that moved to it."""
        for partition in self._partitions - lag.keys():
            self._lag.remove(self._model, partition)
        for partition, behind in lag.items():
            self._lag.labels(self._model, partition).set(behind)
        self._partitions = frozenset(lag)


@contextmanager
def counted_events(
    model: str,
    address: tuple[str, int | None],
    on_event: OnEvent,
    on_port: Callable[[int], None],
) -> Iterator[OnEvent]:
    """Yield an `on_event` that also updates metrics, if `address` has a port.

    MLCTL_TOKEN and MLCTL_TOKEN_FILE protect the metrics as they protect those of a server.
    """
    host, port = address
    if port is None:
        yield on_event
        return
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    metrics = StreamMetrics(model, registry)

    def both(event: StreamEvent) -> None:
        metrics.on_event(event)
        on_event(event)

    file = os.environ.get(TOKEN_FILE)
    access = Access(os.environ.get(TOKEN) or None, Path(file) if file else None)
    with serving(registry, host, port, access) as actual:
        on_port(actual)
        yield both


@contextmanager
def serving(registry: CollectorRegistry, host: str, port: int, access: Access) -> Iterator[int]:
    """Serve the metrics to clients that `access` allows; yield the port, any free one for 0.

    INVALID_INPUT if the port is in use, or the host is not an address of this machine.
    """
    metrics = make_wsgi_app(registry)

    def app(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        shown = environ.get("HTTP_AUTHORIZATION")
        if access.allows(None if shown is None else shown.encode("latin-1")):
            found: Iterable[bytes] = metrics(environ, start)
            return found
        start("401 Unauthorized", [("www-authenticate", "Bearer"), ("content-length", "0")])
        return ()

    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        kind = type("MetricsServer", (ThreadingWSGIServer,), {"address_family": family})
        server: WSGIServer = make_server(host, port, app, kind, _SilentHandler)
    except OSError as error:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"--metrics-port: port {port} of {host} is not available: {error.strerror}",
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="mlctl-metrics", daemon=True)
    thread.start()
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _SilentHandler(WSGIRequestHandler):
    """Logs nothing: a scrape is no news."""

    def log_message(self, *_args: object) -> None:
        pass
