from __future__ import annotations

import pytest

from mlctl.loadtest.figures import LatencyRecord, ServerUse, summarize


def test_summarize__answers_and_errors__gives_percentiles_rates_and_stages() -> None:
    record = LatencyRecord()
    for milliseconds in range(1, 1001):
        record.add(milliseconds / 1e3, "ok", b"queue;dur=2.0, infer;dur=0.5")
    record.add(0.001, "ok")  # without Server-Timing
    for _ in range(3):
        record.add(9.0, "503 queue_full")
    figures = summarize(record, 2.0, clients=4, use=ServerUse(7.5, 0.5))
    assert (figures.answered, figures.failed) == (1001, 3)
    assert figures.errors == {"503 queue_full": 3}
    assert figures.per_second == pytest.approx(500.5)
    assert figures.per_cpu_second == pytest.approx(2002)
    assert figures.p50_ms == pytest.approx(500, abs=1)
    assert figures.p99_ms == pytest.approx(990, abs=1)
    assert figures.p999_ms == pytest.approx(999, abs=1)
    assert figures.queue_ms == pytest.approx(2.0)
    assert figures.infer_ms == pytest.approx(0.5)
    assert figures.rows_per_batch == 7.5
    assert figures.as_dict()["clients"] == 4


def test_summarize__no_answer__has_no_percentiles() -> None:
    record = LatencyRecord()
    record.add(1.0, "connection_lost")
    figures = summarize(record, 1.0, rate=10.0)
    assert (figures.answered, figures.per_second, figures.failed) == (0, 0.0, 1)
    assert figures.p50_ms is figures.p999_ms is figures.queue_ms is figures.per_cpu_second is None
