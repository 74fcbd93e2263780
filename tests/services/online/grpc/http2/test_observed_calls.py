"""What a call's metadata tells an observer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from mlctl.services.online.grpc.http2.head import encode_metadata, parse_head
from mlctl.services.online.grpc.http2.observed_calls import GrpcCalls
from mlctl.services.online.observability.calls import RequestRecord
from mlctl.services.online.observability.observer import Observer
from mlctl.services.online.observability.traceparent import parse_traceparent
from mlctl.services.online.observability.tracing import Tracing
from tests.services.online.grpc.http2.conftest import head as method_head
from tests.services.online.observability.calls import TRACEPARENT

Report = Callable[..., RequestRecord | None]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[Report]:
    tracing = Tracing(TracerProvider(shutdown_on_exit=False), "tiny", "d1")
    observer = Observer(None, tracing, None)
    found: list[RequestRecord] = []
    monkeypatch.setattr(tracing, "put", found.append)
    host: Any = SimpleNamespace(observer=observer)

    def report(*metadata: tuple[str, str | bytes]) -> RequestRecord | None:
        head = parse_head((*method_head(), *encode_metadata(metadata)))
        GrpcCalls(host).ended(head, 7, 0.0, None)
        return found.pop() if found else None

    yield report
    observer.close()


def test_observed_call__metadata__names_request_and_trace(ended: Report) -> None:
    parent = ("traceparent", TRACEPARENT.decode())
    found = ended(parent, ("x-request-id", "mine"), ("some-bin", b"\xff"))
    assert found is not None
    assert (found.request_id, found.bytes_in, found.tracestate) == (b"mine", 7, None)
    assert ended(("x-request-id", "mine")) is None


def test_observed_call__tracestate_in_two_fields__is_joined(ended: Report) -> None:
    parent = ("traceparent", TRACEPARENT.decode())
    found = ended(parent, ("tracestate", "a=1"), ("tracestate", "b=2"))
    assert found is not None
    assert found.tracestate == b"a=1, b=2"


def test_observed_call__two_traceparents__are_ignored(ended: Report) -> None:
    one = TRACEPARENT.decode()
    found = ended(("traceparent", one.replace("a", "b")), ("traceparent", one))
    assert found is not None
    assert parse_traceparent(found.traceparent) is None
