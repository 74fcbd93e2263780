"""The line of a slow request in the server's log."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.core.clock import SystemClock
from mlctl.services.online.batching.scheduler import deadline_exceeded
from mlctl.services.online.observability.observer import open_observer
from mlctl.services.online.observability.slow_log import SlowLog
from mlctl.services.online.settings import ServerSettings
from tests.services.online.observability.calls import answer, done, seen


def test_slow_log__request_above_the_limit__has_a_line_with_its_stages(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow = SlowLog(0.02, "tiny")
    slow.put(done(seen(b"r7")))
    slow.flush()
    (line,) = caplog.messages
    assert line == (
        "slow request r7: 20.0 ms (limit 20 ms), model tiny, http, ok: parse 1.0 ms, "
        "queue 2.0 ms, infer 3.0 ms, serialize 4.0 ms; 2 rows in a batch of 8"
    )


def test_slow_log__fast_request_or_nothing_new__has_no_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow = SlowLog(0.021, "tiny")
    slow.put(done())
    slow.flush()
    slow.flush()
    assert caplog.messages == []


def test_slow_log__many_at_once__are_ten_lines_and_their_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow = SlowLog(0.01, "tiny")
    for _ in range(5000):
        slow.put(done(code="deadline_exceeded"))
    slow.flush()
    assert len(caplog.messages) == 11
    assert "http, deadline_exceeded" in caplog.messages[0]
    assert caplog.messages[-1] == "4990 more requests to model tiny were slow"


async def test_observer__slow_ms_alone__logs_answers_and_failures(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spec = TensorSpec(name="y", dtype=Datatype.FP32, shape=(DYNAMIC,))
    signature = Signature(inputs=(spec,), outputs=(spec,))
    ours = open_observer(ServerSettings(slow_ms=0.001), "tiny", "d", signature, SystemClock())
    assert ours is not None
    assert (ours.active, ours.log_alone) == (True, None)
    y = {"y": np.ones(3, np.float32)}
    ours.finished("grpc", b"a", {}, 1.0, 9, y, answer(y), 0.1, 0.2, 9, "shop")
    record = ours.begin("http", b"b", None)
    assert record is not None
    ours.ended(record, deadline_exceeded())
    await asyncio.to_thread(ours.close)
    assert [text.split(":")[0] for text in caplog.messages] == ["slow request a", "slow request b"]
    assert "http, deadline_exceeded" in caplog.text
    assert "grpc, ok, client shop: parse 100.0 ms" in caplog.messages[0]
    assert "client" not in caplog.messages[1]
