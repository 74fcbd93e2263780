"""What was counted is read in one process and in prometheus-client's multiprocess mode."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Histogram

from mlctl.services.online.metrics.exposition import CounterSink, Exposition, HistogramSink

ROOT = Path(__file__).parents[4]

WORKER = """
import asyncio, sys
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector
from mlctl.services.online.metrics.counts import BatchStats, Metrics

async def main():
    metrics = Metrics("m")
    for _ in range(3):
        metrics.answered("http", 0.1, 0.2, 0.3, 0.4)
    metrics.batch(BatchStats(7, 0.5, 0.25))
    if sys.argv[1] == "asked":
        metrics.publish()
    else:
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        async with asyncio.timeout(60):
            while registry.get_sample_value("mlctl_batch_rows_sum", {"model": "m"}) != 7:
                await asyncio.sleep(0.01)

asyncio.run(main())
"""
READER = """
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
registry = CollectorRegistry()
MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def python(code: str, folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_exposition__several_workers__are_summed(tmp_path: Path) -> None:
    python(WORKER, tmp_path, "asked")
    python(WORKER, tmp_path, "asked")
    text = python(READER, tmp_path)
    assert 'mlctl_requests_total{model="m",outcome="ok",protocol="http"} 6.0' in text
    assert 'mlctl_stage_seconds_bucket{le="0.25",model="m",stage="queue"} 6.0' in text
    assert 'mlctl_batch_rows_sum{model="m"} 14.0' in text
    assert 'nv_inference_count{model="m",version="1"} 14.0' in text


@pytest.mark.slow
def test_exposition__worker_that_is_not_scraped__publishes_by_itself(tmp_path: Path) -> None:
    python(WORKER, tmp_path, "alone")
    assert 'mlctl_batch_rows_sum{model="m"} 7.0' in python(READER, tmp_path)


def test_histogram_sink__many_observations_at_once__equal_single_ones() -> None:
    registry, bounds = CollectorRegistry(), (1.0, 2.0)
    sink = HistogramSink("ours", "h", {"a": "b"}, registry, bounds=bounds)
    theirs = Histogram("theirs", "h", ("a",), buckets=bounds, registry=registry).labels("b")
    sink.report("", [1, 0, 2], 7.5)
    sink.report("", [1, 1, 3], 13.0)
    for value in (1.0, 3.0, 3.5, 2.0, 3.5):
        theirs.observe(value)
    told = {
        metric.name: [sample[1:3] for sample in metric.samples if "created" not in sample.name]
        for metric in registry.collect()
    }
    assert told["ours"] == told["theirs"]


def test_counter_sink__reported_totals__add_only_their_growth() -> None:
    registry = CollectorRegistry()
    sink = CounterSink("c", "text", {"model": "m"}, ("kind",), registry)
    sink.report({("a",): 2})
    sink.report({("a",): 2, ("b",): 1})
    sink.report({("a",): 5, ("b",): 1})
    for kind, value in (("a", 5), ("b", 1)):
        assert registry.get_sample_value("c_total", {"model": "m", "kind": kind}) == value


@pytest.mark.parametrize("ask", [lambda r, _: list(r.collect()), lambda _, e: e.publish()])
def test_exposition__scraped_or_published__collects_first(ask: object) -> None:
    registry, told = CollectorRegistry(), []
    exposition = Exposition(registry, lambda: told.append(1))
    exposition.touch()
    assert not told
    ask(registry, exposition)  # type: ignore[operator]
    assert told == [1]
