"""The stages of cold starts, from the log of a server."""

from __future__ import annotations

import pytest

from mlctl.loadtest.cold import ColdStart, as_document, summary

LOG = """
2026-01-02 model a: loaded in 0.500 s, proved and warmed up in 0.100 s
2026-01-02 model a (abc) is ready, inline=True
2026-01-02 model b: loaded in 1.000 s, proved and warmed up in 0.200 s
2026-01-02 model a: loaded in 0.700 s, proved and warmed up in 0.050 s
"""


def test_cold_start__several_models_and_workers__adds_models_of_the_slowest_worker() -> None:
    start = ColdStart.of(LOG, 5.0, 0.01)
    assert start.load_s == pytest.approx(1.7)
    assert start.warm_up_s == pytest.approx(0.25)
    assert start.process_s == pytest.approx(5.0 - 1.7 - 0.25)
    assert (start.ready_s, start.first_answer_s) == (5.0, 5.01)


def test_summary__of_starts__has_percentiles_of_each_stage() -> None:
    starts = [ColdStart.of("", float(seconds), 1.0) for seconds in range(1, 12)]
    found = summary(starts)
    assert found["ready_s"] == {"p50": 6.0, "p90": 10.0, "max": 11.0}
    assert found["first_answer_s"]["max"] == 12.0
    assert found["load_s"] == {"p50": 0.0, "p90": 0.0, "max": 0.0}
    document = as_document("tiny:1", starts)
    assert document["starts"][0]["process_s"] == 1.0
    assert len(document["starts"]) == 11
