from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from mlctl.services.online.observability import tracing
from mlctl.services.online.observability.tracing import Tracing, is_enabled
from tests.services.online.observability.calls import SPAN, TRACE, done, seen


def spans(*requests: Any) -> dict[str, ReadableSpan]:
    """What is sent for requests, by the spans' names."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    ours = Tracing(provider, "tiny", "d1")
    for request in requests:
        ours.put(request)
    ours.flush()
    ours.close()
    return {span.name: span for span in exporter.get_finished_spans()}


def test_spans__answered_request__has_a_span_and_its_stages() -> None:
    found = spans(done(at=100.0))
    server = found.pop("POST /v2/models/tiny/infer")
    assert server.kind is SpanKind.SERVER
    assert server.parent is not None
    assert server.context is not None
    assert f"{server.context.trace_id:032x}" == TRACE
    assert f"{server.parent.span_id:016x}" == SPAN
    assert (server.start_time, server.end_time) == (99_980_000_000, 100_000_000_000)
    told = dict(server.attributes or {})
    assert told["http.response.status_code"] == 200
    assert (told["mlctl.digest"], told["mlctl.request_id"], told["mlctl.rows"]) == ("d1", "r1", 2)
    assert list(found) == ["serialize", "infer", "queue", "parse"]
    end = server.end_time
    for span, milliseconds in zip(found.values(), (4, 3, 2, 1), strict=True):
        assert span.parent is not None
        assert span.parent.span_id == server.context.span_id
        assert end is not None
        assert (span.start_time, span.end_time) == (end - milliseconds * 10**6, end)
        end = span.start_time
    assert dict(found["infer"].attributes or {}) == {"mlctl.batch_rows": 8}


def test_spans__failed_request__is_one_span_with_its_code() -> None:
    found = spans(done(seen(protocol="grpc"), "queue_full"))
    (span,) = found.values()
    assert span.name == "inference.GRPCInferenceService/ModelInfer"
    assert span.status.status_code is StatusCode.ERROR
    told = dict(span.attributes or {})
    assert (told["error.type"], told["mlctl.grpc_status"]) == ("queue_full", "RESOURCE_EXHAUSTED")
    (gone,) = spans(done(code="gone")).values()
    assert gone.status.status_code is StatusCode.UNSET


def test_spans__tracestate__is_passed_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = spans(done(seen(tracestate=b"rojo=00f0, congo@x=t 61")))
    assert len(found) == 5
    for span in found.values():
        assert span.context is not None
        assert span.context.trace_state.to_header() == "rojo=00f0,congo@x=t 61"
    (span,) = spans(done(seen(tracestate=b"not one\xff"), "queue_full")).values()
    assert span.context is not None
    assert not span.context.trace_state
    assert caplog.records == []


def test_spans__invalid_parent_or_full_backlog__are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert spans(done(seen(traceparent=b"00-" + b"x" * 50 + b"01"))) == {}
    monkeypatch.setattr(tracing, "MAX_WAITING", 1)
    ours = Tracing(TracerProvider(shutdown_on_exit=False), "m", "d")
    ours.put(done())
    ours.put(done())
    assert ours.dropped == 1


def test_is_enabled__standard_variables__enable_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (tracing.BASE_VARIABLE, tracing.TRACES_VARIABLE, "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)
    assert not is_enabled(None)
    assert is_enabled("http://collector:4318")
    for name in (tracing.BASE_VARIABLE, tracing.TRACES_VARIABLE):
        with monkeypatch.context() as patch:
            patch.setenv(name, "http://collector:4318")
            assert is_enabled(None)
            patch.setenv("OTEL_TRACES_EXPORTER", "none")
            assert not is_enabled(None)
