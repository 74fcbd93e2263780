"""OpenTelemetry spans of the requests whose caller records its trace (W3C trace context).

The request path reads one header. Spans are made afterwards, by the observer's thread,
from the seconds that each stage took, and sent by the SDK's own thread over OTLP/HTTP.
"""

from __future__ import annotations

import os
from typing import Any

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.packages import install_hint
from mlctl.services.online.observability.backlog import Backlog
from mlctl.services.online.observability.calls import GONE, GRPC, OK, PREDICT, RequestRecord
from mlctl.services.online.observability.traceparent import (
    TraceParent,
    parse_traceparent,
    parse_tracestate,
)

# The standard variables; the second one holds the whole URL for traces.
BASE_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_VARIABLE = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_SERVICE_VARIABLES = ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES")
MAX_WAITING = 4096
# The time for which a stop waits for a collector that does not answer.
_EXPORT_SECONDS = 3.0
_NANOSECONDS = 1e9


class Tracing:
    """Makes spans of requests. `provider` is an SDK's TracerProvider."""

    def __init__(self, provider: Any, model: str, digest: str) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("mlctl")
        self._attributes = {"mlctl.model": model, "mlctl.digest": digest}
        self._names = {
            "http": f"POST /v2/models/{model}/infer",
            GRPC: "inference.GRPCInferenceService/ModelInfer",
            PREDICT: "POST /predict",
        }
        self._waiting = Backlog[RequestRecord](MAX_WAITING)

    @property
    def dropped(self) -> int:
        """Requests without spans, because they came too fast."""
        return self._waiting.dropped

    def put(self, record: RequestRecord) -> None:
        """Take one request."""
        self._waiting.put(record)

    def flush(self) -> None:
        """Give the SDK the spans of the requests taken so far."""
        for record in self._waiting.take():
            parent = parse_traceparent(record.traceparent)
            if parent is not None:
                self._record(record, parent)

    def close(self) -> None:
        """Send the rest."""
        self._provider.shutdown()

    def _record(self, record: RequestRecord, parent: TraceParent) -> None:
        from opentelemetry.trace import SpanKind, StatusCode

        end = _nanoseconds(record.at)
        start = end - _nanoseconds(record.seconds)
        span = self._tracer.start_span(
            self._names[record.protocol],
            context=_context(parent, record.tracestate),
            kind=SpanKind.SERVER,
            attributes=self._describe(record),
            start_time=start,
        )
        if record.code not in (OK, GONE):
            span.set_attribute("error.type", record.code)
            span.set_status(StatusCode.ERROR)
        self._record_stages(record, span, start, end)
        span.end(end)

    def _record_stages(self, record: RequestRecord, span: Any, start: int, end: int) -> None:
        """Add a span per stage, one after the other, the last of which ends with the request."""
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(span)
        for name in ("serialize", "infer", "queue", "parse"):
            seconds: float | None = getattr(record, name)
            if seconds is None:
                continue
            begin = max(start, end - _nanoseconds(seconds))
            stage = self._tracer.start_span(name, context=context, start_time=begin)
            if name == "infer" and record.batch_rows is not None:
                stage.set_attribute("mlctl.batch_rows", record.batch_rows)
            stage.end(end)
            end = begin

    def _describe(self, record: RequestRecord) -> dict[str, Any]:
        if record.protocol == GRPC:
            attributes = {"rpc.system": "grpc", "mlctl.grpc_status": record.status}
        else:
            attributes = {"http.request.method": "POST", "http.response.status_code": record.status}
        attributes["mlctl.request_id"] = record.request_id.decode("latin-1")
        if record.client:
            attributes["mlctl.client"] = record.client
        if record.rows is not None:
            attributes["mlctl.rows"] = record.rows
        return {**self._attributes, **attributes}


def is_enabled(endpoint: str | None) -> bool:
    """Return whether our own setting or the standard variables name a collector."""
    if os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return endpoint is not None or any(map(os.environ.get, (BASE_VARIABLE, TRACES_VARIABLE)))


def open_tracing(endpoint: str | None, model: str, digest: str) -> Tracing:
    """Return spans to the collector at the base URL `endpoint`, or at the standard variables' URL.

    RUNTIME_MISSING if the exporter is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MlctlError(
            ErrorCode.RUNTIME_MISSING,
            "spans need the OTLP exporter, which is not installed",
            f"{install_hint('otel')}. Or unset MLCTL_OTLP_ENDPOINT and "
            f"{BASE_VARIABLE}, or set OTEL_TRACES_EXPORTER=none.",
        ) from error
    url = None if endpoint is None else f"{endpoint.rstrip('/')}/v1/traces"
    named = any(map(os.environ.get, _SERVICE_VARIABLES))
    resource = Resource.create({} if named else {"service.name": model})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=url, timeout=_EXPORT_SECONDS)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider, model, digest)


def _context(parent: TraceParent, tracestate: bytes | None) -> Any:
    from opentelemetry.trace import (
        NonRecordingSpan,
        SpanContext,
        TraceFlags,
        TraceState,
        set_span_in_context,
    )

    # Its own parser logs invalid values: any client could fill the log.
    state = TraceState(parse_tracestate(tracestate))
    context = SpanContext(
        parent.trace_id, parent.span_id, True, TraceFlags(parent.flags), trace_state=state
    )
    return set_span_in_context(NonRecordingSpan(context))


def _nanoseconds(seconds: float) -> int:
    return round(seconds * _NANOSECONDS)
