from prometheus_client import CollectorRegistry

from services.metrics import BatchStats, Metrics


def test_requests_batches_and_depth_are_told() -> None:
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
