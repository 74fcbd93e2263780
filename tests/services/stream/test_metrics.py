"""What a scrape says of a run."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

from mlctl.core.errors import MlctlError
from mlctl.services.access import Access
from mlctl.services.stream.events import CommittedBatch, StreamEvent, StreamPhase, StreamTotals
from mlctl.services.stream.metrics import StreamMetrics, counted_events, serving
from tests.support.clock import ManualClock


def _event(
    phase: StreamPhase, lag: dict[str, int] | None, batch: CommittedBatch | None = None, n: int = 0
) -> StreamEvent:
    return StreamEvent(phase, StreamTotals(), 1.0, lag, batch, n)


def test_metrics__scrape__counts_the_events() -> None:
    registry = CollectorRegistry()
    metrics = StreamMetrics("tiny", registry, ManualClock(1000.0))
    batch = CommittedBatch(10, 12, 8, 2, 0.003, {"commit": 0.02}, {"invalid_input": 2})
    metrics.on_event(_event(StreamPhase.STARTED, {"0": 5, "1": 7}))
    metrics.on_event(_event(StreamPhase.COMMITTED, None, batch))
    metrics.on_event(_event(StreamPhase.REBALANCED, None, n=1))
    metrics.on_event(_event(StreamPhase.COMMITTED, {"1": 3}, batch, n=2))
    metrics.on_event(_event(StreamPhase.PAUSED, None, n=2))
    with serving(registry, "127.0.0.1", 0, Access()) as port:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        with (
            pytest.raises(MlctlError, match=f"port {port}"),
            serving(registry, "127.0.0.1", port, Access()),
        ):
            pass
    for line in (
        'mlctl_stream_messages_total{model="tiny",outcome="answer"} 16.0',
        'mlctl_stream_messages_total{model="tiny",outcome="dead"} 4.0',
        'mlctl_stream_dead_letters_total{model="tiny",reason="invalid_input"} 4.0',
        'mlctl_stream_rows_total{model="tiny"} 24.0',
        'mlctl_stream_rebalances_total{model="tiny"} 2.0',
        'mlctl_stream_batch_messages_bucket{le="16.0",model="tiny"} 2.0',
        'mlctl_stream_wait_seconds_sum{model="tiny"} 0.006',
        'mlctl_stream_stage_seconds_sum{model="tiny",stage="commit"} 0.04',
        'mlctl_stream_lag_messages{model="tiny",partition="1"} 3.0',
        'mlctl_stream_paused{model="tiny"} 1.0',
        'mlctl_stream_last_commit_timestamp_seconds{model="tiny"} 1000.0',
    ):
        assert line in text.splitlines()
    assert 'partition="0"' not in text
    metrics.on_event(_event(StreamPhase.IDLE, None, n=2))
    assert registry.get_sample_value("mlctl_stream_paused", {"model": "tiny"}) == 0.0


@pytest.mark.parametrize("variable", ["MLCTL_TOKEN", "MLCTL_TOKEN_FILE"])
def test_metrics__token_of_a_server__is_required(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "0123456789abcdef"
    (tmp_path / "tokens").write_text(token)
    value = token if variable == "MLCTL_TOKEN" else str(tmp_path / "tokens")
    monkeypatch.setenv(variable, value)
    ports: list[int] = []
    with counted_events("tiny", ("0.0.0.0", 0), lambda _event: None, ports.append):
        url = f"http://127.0.0.1:{ports[0]}/metrics"
        assert httpx.get(url).status_code == 401
        assert httpx.get(url, headers={"authorization": "Bearer wrong"}).status_code == 401
        found = httpx.get(url, headers={"authorization": f"Bearer {token}"})
    assert found.status_code == 200
    assert "mlctl_stream_paused" in found.text


def test_metrics__host_of_another_machine__is_rejected() -> None:
    with (
        pytest.raises(MlctlError, match=r"port 0 of 192\.0\.2\.1"),
        serving(CollectorRegistry(), "192.0.2.1", 0, Access()),
    ):
        pass
