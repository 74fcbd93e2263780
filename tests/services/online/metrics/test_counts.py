from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from mlctl.core.errors import MlctlError
from mlctl.services.online.metrics.counts import BatchStats, Distribution, Metrics
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings
from tests.support.listening import until
from tests.support.transforms import make_text_bundle, texts


def test_metrics__requests_batches_and_depth__are_exported() -> None:
    registry = CollectorRegistry()
    metrics = Metrics("m", registry)
    metrics.request("http", "ok")
    metrics.request("http", "ok")
    metrics.request("grpc", "queue_full")
    metrics.batch(BatchStats(rows=5, queue_seconds=0.002, infer_seconds=0.5))
    metrics.queue_rows(3)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"model": "m", **labels})

    assert value("mlctl_requests_total", protocol="http", outcome="ok") == 2
    assert value("mlctl_requests_total", protocol="grpc", outcome="queue_full") == 1
    assert value("mlctl_batch_rows_sum") == 5
    assert value("mlctl_queue_seconds_bucket", le="0.0025") == 1
    assert value("mlctl_infer_seconds_sum") == 0.5
    assert value("mlctl_queue_rows") == 3


def test_metrics__rejections_and_deadline_misses__are_counted_apart() -> None:
    registry = CollectorRegistry()
    metrics = Metrics("m", registry)
    assert registry.get_sample_value("mlctl_deadline_misses_total", {"model": "m"}) == 0
    outcomes = ("ok", "gone", "internal", "queue_full", "queue_full", "deadline_exceeded")
    for outcome in outcomes:
        metrics.request("http", outcome)
    metrics.request("grpc", "queue_full")

    def refused(reason: str) -> float | None:
        labels = {"model": "m", "reason": reason}
        return registry.get_sample_value("mlctl_rejections_total", labels)

    assert refused("queue_full") == 3
    assert [refused(reason) for reason in ("ok", "gone", "internal", "deadline_exceeded")] == [
        None
    ] * 4
    assert registry.get_sample_value("mlctl_deadline_misses_total", {"model": "m"}) == 1


async def test_metrics__transform__is_timed_without_its_warm_up(tmp_path: Path) -> None:
    registry = CollectorRegistry()

    def seconds(part: str) -> float:
        labels = {"model": "texts", "part": part}
        found = registry.get_sample_value("mlctl_transform_seconds_total", labels)
        assert found is not None
        return found

    host = ServedModel(make_text_bundle(tmp_path / "bundle"), ServerSettings(), registry=registry)
    await host.start()
    assert (seconds("preprocess"), seconds("postprocess")) == (0, 0)
    await host.infer(texts("one two"))
    before = seconds("preprocess")
    assert before > 0 < seconds("postprocess")
    with pytest.raises(MlctlError, match="no words"):
        await host.infer(texts(" "))
    assert seconds("preprocess") > before
    whole = registry.get_sample_value("mlctl_infer_seconds_sum", {"model": "texts"})
    assert whole is not None
    assert seconds("preprocess") + seconds("postprocess") < whole
    await host.stop()


def test_metrics__each_stage__has_a_histogram() -> None:
    registry = CollectorRegistry()
    metrics = Metrics("m", registry)
    metrics.answered("http", parse=0.00002, queue=0.5, infer=20.0, serialize=0.0)
    metrics.answered("http", parse=0.00002, queue=0.25, infer=0.0, serialize=0.0)

    def value(suffix: str, stage: str, **labels: str) -> float | None:
        found = {"model": "m", "stage": stage, **labels}
        return registry.get_sample_value(f"mlctl_stage_seconds_{suffix}", found)

    assert value("bucket", "parse", le="1e-05") == 0
    assert value("bucket", "parse", le="2.5e-05") == 2
    assert value("sum", "queue") == 0.75
    assert value("bucket", "infer", le="10.0") == 1
    assert value("bucket", "infer", le="+Inf") == 2
    assert value("count", "serialize") == 2


def test_distribution__values__are_in_their_buckets() -> None:
    distribution = Distribution((1, 2, 4))
    for value in (0.5, 1, 1.5, 2, 4, 5):
        distribution.observe(value)
    assert distribution.counts == [2, 2, 1, 1]
    assert distribution.total == 14


def test_metrics__workers_and_hung_ones__are_exported() -> None:
    registry = CollectorRegistry()
    metrics = Metrics("m", registry)
    labels = {"model": "m"}
    assert registry.get_sample_value("mlctl_workers", labels) == 1
    assert registry.get_sample_value("mlctl_hung_workers", labels) == 0
    metrics.hung()
    assert registry.get_sample_value("mlctl_hung_workers", labels) == 1


async def test_metrics__worker_that_is_not_scraped__publishes_by_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever is scraped tells what all workers have told."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setattr("mlctl.services.online.metrics.exposition.PUBLISH_SECONDS", 0.01)

    metrics = Metrics("tiny", CollectorRegistry())
    workers = metrics._worker_sink._gauge
    assert workers._value.get() == 0
    await until(lambda: workers._value.get() == 1)
