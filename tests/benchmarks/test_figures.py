"""The figures that the benchmarks derive from their measurements."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.loadgen import FAILED, HINTED, REJECTED, SUCCESS, OpenLoad
from benchmarks.online import OnlineCell, limit_of
from benchmarks.overload import summarize
from benchmarks.servers import ECHO


def test_overload__late_responses__do_not_count_as_throughput() -> None:
    due = np.array([0.5, 1.0, 1.5, 1.6, 1.7, 1.8], np.float32)
    latency = np.array([0.7, 0.1, 9.0, 0.002, 0.004, 0.1], np.float32)
    outcome = np.array([SUCCESS, SUCCESS, SUCCESS, HINTED, REJECTED, FAILED], np.float32)
    found = summarize(OpenLoad(1, 0.5, due, np.zeros(6, np.float32), latency, outcome), 1.0, 2.0)
    assert found.offered == 5
    # The request due at 0.5 s ended at 1.2 s; that due at 1.5 s ended after 2 s.
    assert found.answered == 2
    assert found.failed == 1
    assert found.hinted == 0.5
    assert found.rejection_p50 == pytest.approx(3.0)


def test_limit__runtime_and_echo_server__adds_their_costs() -> None:
    echo = OnlineCell(ECHO, "no model", 64, 0.0, 100_000.0, 0.0, 0.0, 0, 0.0, 0.0, None)
    # A batch of 128 does not form with 64 clients.
    assert limit_of([echo], {1: 5_000.0, 64: 25_000.0, 128: 50_000.0}, 64) == pytest.approx(20_000)
