"""The observer of one model in one worker: takes records and writes them on a thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from time import perf_counter
from typing import Any, Protocol

from prometheus_client import CollectorRegistry

from mlctl.bundle.arrays import Arrays
from mlctl.bundle.sampling import Sampling
from mlctl.bundle.tensors import Signature
from mlctl.core.clock import Clock
from mlctl.services.online.batching.executor import Answer
from mlctl.services.online.metrics.exposition import CounterSink, Exposition
from mlctl.services.online.observability.access_log import AccessLog, open_output
from mlctl.services.online.observability.calls import OK, RequestRecord, outcome_of
from mlctl.services.online.observability.sampling import Recorder, SamplingControl
from mlctl.services.online.observability.segments import SegmentWriter
from mlctl.services.online.observability.settings import OFF, ObserveSettings
from mlctl.services.online.observability.slow_log import SlowLog
from mlctl.services.online.observability.traceparent import is_sampled
from mlctl.services.online.observability.tracing import Tracing, is_enabled, open_tracing

TICK_SECONDS = 0.2
# Many lines at once hold the interpreter's lock while responses wait, and fill the CPU's caches.
_LOG_TICK_SECONDS = 0.02
# A full disk is logged once a minute, not five times a second.
_COMPLAIN_SECONDS = 60.0
_STOP_SECONDS = 10.0
# The name and the help text of the counters: of what each sink dropped, and of samples.
DROPPED = (
    ("mlctl_access_log_dropped", "Lines missing in the access log."),
    ("mlctl_spans_dropped", "Traced requests without spans."),
    ("mlctl_samples_dropped", "Chosen requests that are not in the samples."),
)
SAMPLED = ("mlctl_sampled_rows", "Rows written to samples.")
logger = logging.getLogger("mlctl.observe")


class RecordSink(Protocol):
    """Writes what was recorded; called on the observer's thread."""

    @property
    def dropped(self) -> int: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class Observer:
    """Records the infer requests of one model. All but `close` belongs to the event loop.

    `active` is whether any request may have a record now: with neither an access log nor a
    collector for traces, only while a share of the requests is sampled. `log_alone` is the access
    log if nothing else takes answers now: it needs no record of them.
    """

    log_alone: AccessLog | None

    def __init__(
        self,
        log: AccessLog | None,
        tracing: Tracing | None,
        recorder: Recorder | None,
        slow: SlowLog | None = None,
    ) -> None:
        self._log = log
        self._slow = slow
        self._tracing = tracing
        self._recorder = recorder
        self._update()
        self._sinks: list[RecordSink] = [
            sink for sink in (log, tracing, recorder, slow) if sink is not None
        ]
        self._ending = threading.Event()
        self._complained: dict[int, float] = {}
        self._exposition: Exposition | None = None
        self._thread = threading.Thread(target=self._run, name="mlctl-observe", daemon=True)
        self._thread.start()

    def begin(
        self,
        protocol: str,
        request_id: bytes,
        traceparent: bytes | None,
        tracestate: bytes | None = None,
    ) -> RequestRecord | None:
        """Return the record of a request whose headers arrived, or None if it has none."""
        if not self.active:
            return None
        traced = self._tracing is not None and is_sampled(traceparent)
        sampling = None if self._recorder is None else self._recorder.choose(request_id)
        if self._log is None and self._slow is None and not traced and sampling is None:
            return None
        record = RequestRecord(protocol, request_id, traceparent)
        if traced:
            record.traced, record.tracestate = True, tracestate
        if sampling is not None:
            record.sampling = sampling
        return record

    def finished(
        self,
        protocol: str,
        request_id: bytes,
        headers: Mapping[bytes, bytes],
        started: float,
        bytes_in: int,
        inputs: Arrays,
        answer: Answer,
        parse: float,
        serialize: float,
        bytes_out: int,
        client: str,
    ) -> None:
        """Record the answer to a request of `client` without a record, which began at `started`.

        `started` is of `perf_counter`; see `answered`. Not called where the log is alone.
        """
        traceparent, tracestate = headers.get(b"traceparent"), headers.get(b"tracestate")
        record = self.begin(protocol, request_id, traceparent, tracestate)
        if record is not None:
            record.started, record.bytes_in, record.client = started, bytes_in, client
            self.answered(record, inputs, answer, parse, serialize, bytes_out)

    def answered(
        self,
        record: RequestRecord,
        inputs: Arrays,
        answer: Answer,
        parse: float | None = None,
        serialize: float | None = None,
        bytes_out: int | None = None,
    ) -> None:
        """Record the answer to a request, with what is known of it.

        `parse` and `serialize` are seconds, `bytes_out` is the size of the body.
        """
        record.rows, record.batch_rows = answer.rows, answer.batch_rows
        record.parse, record.serialize, record.bytes_out = parse, serialize, bytes_out
        record.queue, record.infer = answer.queue_seconds, answer.infer_seconds
        self._end(record, OK)
        if self._recorder is not None and record.sampling is not None and inputs:
            sampling, rows = record.sampling, record.rows
            self._recorder.put(record, sampling, record.at, rows, inputs, answer.outputs)

    def ended(
        self, record: RequestRecord, error: BaseException | None, status: int | None = None
    ) -> None:
        """Record that a request failed or its client disconnected, or the end of its stream.

        `status` is the HTTP status if it is not that of the error.
        """
        record.reported_status = status
        self._end(record, outcome_of(error))

    def expose(self, model: str, registry: CollectorRegistry) -> None:
        """Add metrics to `registry` of what was dropped and what was recorded."""
        sinks = (self._log, self._tracing, self._recorder)
        labels = {"model": model}
        self._exposition = Exposition(registry, self._publish)
        self._dropped = [
            (CounterSink(name, text, labels, (), registry), sink)
            for (name, text), sink in zip(DROPPED, sinks, strict=True)
            if sink is not None
        ]
        self._rows = CounterSink(*SAMPLED, labels, (), registry)

    def publish(self) -> None:
        """Bring the metrics up to date."""
        if self._exposition is not None:
            self._exposition.publish()

    def close(self) -> None:
        """Write and send the rest, and end the thread; blocks for up to ten seconds."""
        self._ending.set()
        self._thread.join(_STOP_SECONDS)

    def _end(self, record: RequestRecord, code: str) -> None:
        record.code = code
        record.seconds, record.at = perf_counter() - record.started, time.time()
        if self._log is not None:
            self._log.ended(record)
        if self._slow is not None:
            self._slow.put(record)
        if self._tracing is not None and record.traced:
            self._tracing.put(record)

    def _update(self) -> None:
        """Decide what the requests of the next tick need."""
        sampling = self._recorder is not None and self._recorder.sampling
        others = self._tracing is not None or self._slow is not None or sampling
        self.active = self._log is not None or others
        self.log_alone = None if others else self._log

    def _run(self) -> None:
        tick = TICK_SECONDS if self._log is None else _LOG_TICK_SECONDS
        while not self._ending.wait(tick):
            for sink in self._sinks:
                self._guarded(sink, sink.flush)
            self._update()
            self.publish()
        for sink in self._sinks:
            self._guarded(sink, sink.flush)
            self._guarded(sink, sink.close)
        self.publish()

    def _guarded(self, sink: RecordSink, work: Any) -> None:
        """Log and count a failure of `work`; it must harm neither requests nor other sinks."""
        try:
            work()
        except Exception:
            now = time.monotonic()
            if now - self._complained.get(id(sink), -_COMPLAIN_SECONDS) >= _COMPLAIN_SECONDS:
                self._complained[id(sink)] = now
                what = type(sink).__name__
                logger.exception("%s fails; %d requests lost so far", what, sink.dropped)

    def _publish(self) -> None:
        for counter, sink in self._dropped:
            counter.report({(): sink.dropped})
        if self._recorder is not None:
            self._rows.report({(): self._recorder.rows})


def open_observer(
    settings: ObserveSettings, model: str, digest: str, signature: Signature, clock: Clock
) -> Observer | None:
    """Return the observer that `settings` enable, or None.

    RUNTIME_MISSING for a package that is not installed, INVALID_INPUT for a file or folder
    that cannot be written.
    """
    log = tracing = recorder = None
    if settings.sample_dir is not None:
        recorder = _open_recorder(settings, digest, signature, clock)
    if is_enabled(settings.otlp_endpoint):
        tracing = open_tracing(settings.otlp_endpoint, model, digest)
    if settings.access_log != OFF:
        output = open_output(settings.access_log)
        log = AccessLog(output, model, digest)
    slow = None if settings.slow_ms is None else SlowLog(settings.slow_ms / 1e3, model)
    if log is None and tracing is None and recorder is None and slow is None:
        return None
    return Observer(log, tracing, recorder, slow)


def _open_recorder(
    settings: ObserveSettings, digest: str, signature: Signature, clock: Clock
) -> Recorder | None:
    if settings.sample_share == 0 and settings.sample_control is None:
        return None
    assert settings.sample_dir is not None
    sampling = Sampling(share=settings.sample_share, redact=settings.sample_redact)
    known = {spec.name for spec in (*signature.inputs, *signature.outputs)}
    for name in sorted({*settings.sample_redact} - known):
        logger.warning(
            "MLCTL_SAMPLE_REDACT: no tensor is called %s; these are: %s",
            name,
            ", ".join(sorted(known)),
        )
    writer = SegmentWriter(settings.sample_dir, signature, digest)
    return Recorder(writer, SamplingControl(sampling, settings.sample_control), clock)
