from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.trace import TraceState, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from mlctl.services.online.observability.traceparent import (
    is_sampled,
    parse_traceparent,
    parse_tracestate,
    trace_id,
)
from tests.services.online.observability.calls import SPAN, TRACE, TRACEPARENT

HEX = "0123456789abcdef"


def test_parse_traceparent__valid_header__is_the_callers_span() -> None:
    found = parse_traceparent(TRACEPARENT)
    assert found is not None
    assert (f"{found.trace_id:032x}", f"{found.span_id:016x}", found.flags) == (TRACE, SPAN, 1)
    assert trace_id(TRACEPARENT) == TRACE
    assert is_sampled(TRACEPARENT)
    assert not is_sampled(TRACEPARENT[:-1] + b"0")
    assert not is_sampled(None)


@pytest.mark.parametrize(
    "header",
    [
        b"", b"00", TRACEPARENT.upper(), b"ff" + TRACEPARENT[2:], TRACEPARENT + b"x",
        f"00-{'0' * 32}-{SPAN}-01".encode(), f"00-{TRACE}-{'0' * 16}-01".encode(),
        TRACEPARENT + b"\n",
    ],
)  # fmt: skip
def test_parse_traceparent__invalid_header__is_none(header: bytes) -> None:
    assert parse_traceparent(header) is None
    assert trace_id(header) is None


@given(st.text(HEX + "-zF", max_size=60) | st.from_regex(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[0-3]"))
def test_parse_traceparent__any_header__agrees_with_the_sdk(header: str) -> None:
    carrier = {"traceparent": header}
    theirs = get_current_span(TraceContextTextMapPropagator().extract(carrier)).get_span_context()
    ours = parse_traceparent(header.encode())
    if ours is not None:  # theirs ignores spaces around
        assert (ours.trace_id, ours.span_id) == (theirs.trace_id, theirs.span_id)
        assert is_sampled(header.encode()) == bool(theirs.trace_flags & 1)
    else:
        assert not theirs.is_valid or header != header.strip()


MEMBERS = st.from_regex(r"[ \t]?[a-bA]{1,2}[@*]?[a-b]{0,2}=[ -~]{0,3}[ \t]?", fullmatch=True)


@given(st.lists(MEMBERS | st.sampled_from(["", " ", "a", "a=1", "b=2"]), max_size=4).map(",".join))
@example("k=" + "v" * 256)
@example("k=" + "v" * 257)
@example("k" * 256 + "=v")
@example("k" * 257 + "=v")
@example(",".join(f"k{number}=v" for number in range(32)))
@example(",".join(f"k{number}=v" for number in range(33)))
def test_parse_tracestate__any_header__agrees_with_the_sdk(header: str) -> None:
    theirs = TraceState.from_header([header])
    assert parse_tracestate(header.encode()) == list(theirs.items())


def test_parse_tracestate__no_header__is_empty() -> None:
    assert parse_tracestate(None) == []
