"""The kills of `benchmarks.rollout` and `benchmarks.runners`, with few of them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks import kills
from benchmarks.batch import kills as batch_kills
from benchmarks.result import BenchmarkResult, RunConditions
from benchmarks.stream import kills as stream_kills


def empty_result() -> BenchmarkResult:
    conditions = RunConditions(
        started=datetime.now(UTC), commit="", machine="", versions={}, load_at_start=0.0
    )
    return BenchmarkResult(program="runners", conditions=conditions)


@pytest.mark.slow
@pytest.mark.serial
def test_kills__client_and_daemon_killed__promotions_end_without_failed_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLCTL_HOME", str(tmp_path))
    result = empty_result()
    kills.measure(2, 1, result)
    (table,) = result.tables
    assert "0 processes left" in table.title
    rows = {row[0]: row[1:7] for row in table.rows}
    for victim in (kills.CLIENT, "the daemon"):
        killed, promoted, _rolled_back, wrong, requests, failed = rows[victim]
        assert (killed, promoted, wrong, failed) == ("1", "1", "0", "0")
        assert requests != "0"


@pytest.mark.slow
@pytest.mark.serial
def test_promotions__one_taken_back__costs_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLCTL_HOME", str(tmp_path))
    result = empty_result()
    kills.measure_promotions(1, result)
    ((promoted, rolled_back, requests, failed, _outage, last_answer, *_),) = result.tables[0].rows
    assert (promoted, rolled_back, failed) == ("1", "0", "0")
    assert requests != "0"
    assert float(last_answer) > 0.0


@pytest.mark.slow
def test_stream_kills__one_kill__counts_every_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = {"SQLite log": stream_kills.STREAMS["SQLite log"]}
    monkeypatch.setattr(stream_kills, "STREAMS", streams)
    result = empty_result()
    stream_kills.measure(1, 1, tmp_path, result)
    ((_name, killed, sent, lost, twice, dead, dead_twice, _ended, early, failed, _seconds),) = (
        result.tables[0].rows
    )
    assert int(killed) >= 1
    assert (lost, twice, dead_twice, early, failed) == ("0", "0", "0", "0", "0")
    assert int(dead) == int(sent.replace(",", "")) // 50


@pytest.mark.slow
def test_batch_kills__one_kill_each__counts_every_row(tmp_path: Path) -> None:
    result = empty_result()
    batch_kills.measure(1, 2_000, 1, tmp_path, result)
    (table,) = result.tables
    assert [row[0] for row in table.rows] == list(batch_kills.OUTPUTS)
    for _name, killed, jobs, answers, *wrong, _seconds, _all_seconds in table.rows:
        assert int(killed) >= 1
        assert int(answers.replace(",", "")) == int(jobs) * 1_999
        assert wrong == ["0"] * 5


def test_batch_kills__lost_repeated_and_changed_rows__are_counted() -> None:
    expected = pa.table({"id": range(5), "y": [0.5] * 5})
    changed = pa.table({"id": range(5), "y": [0.5, 0.5, 0.25, 0.5, 0.5]})
    assert batch_kills.differences(expected.take([4, 3, 2, 1, 0]), expected) == (0, 0, 0)
    assert batch_kills.differences(expected.slice(2), expected) == (2, 0, 0)
    assert batch_kills.differences(expected.take([0, 1, 2, 3, 4, 4]), expected) == (0, 1, 0)
    assert batch_kills.differences(expected.take([0, 1, 2, 2, 3]), expected) == (1, 1, 0)
    assert batch_kills.differences(changed, expected) == (0, 0, 1)
