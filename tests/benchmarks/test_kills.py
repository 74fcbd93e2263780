"""The kills of `benchmarks.rollout`, with one promotion for each of two victims."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks import kills
from benchmarks.result import BenchmarkResult, RunConditions


@pytest.mark.slow
def test_kills__client_and_daemon_killed__promotions_end_without_failed_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLCTL_HOME", str(tmp_path))
    conditions = RunConditions(
        started=datetime.now(UTC), commit="", machine="", versions={}, load_at_start=0.0
    )
    result = BenchmarkResult(program="rollout", conditions=conditions)
    kills.measure(2, 1, result)
    (table,) = result.tables
    assert "0 processes left" in table.title
    rows = {row[0]: row[1:7] for row in table.rows}
    for victim in (kills.CLIENT, "the daemon"):
        killed, promoted, _rolled_back, wrong, requests, failed = rows[victim]
        assert (killed, promoted, wrong, failed) == ("1", "1", "0", "0")
        assert requests != "0"
