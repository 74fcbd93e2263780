"""What Triton's users look for on /metrics, by the names in Triton's documentation."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from mlctl.services.online.metrics.counts import BatchStats, Metrics
from mlctl.services.online.metrics.triton import as_counters


def told(registry: CollectorRegistry, model: str = "m") -> dict[str, float]:
    return {
        sample.name: sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name.startswith("nv_") and sample.labels == {"model": model, "version": "1"}
    }


def test_as_counters__exposition__tritons_names_are_counters_and_others_as_they_were() -> None:
    registry = CollectorRegistry()
    Metrics("m", registry)
    before = generate_latest(registry).decode()
    after = as_counters(before)
    changed = {
        (old, new)
        for old, new in zip(before.splitlines(), after.splitlines(), strict=True)
        if old != new
    }
    names = told(registry)
    assert changed == {(f"# TYPE {name} gauge", f"# TYPE {name} counter") for name in names}


def test_triton_metrics__each_name__has_our_sums() -> None:
    registry = CollectorRegistry()
    metrics, other = Metrics("m", registry), Metrics("other", registry)
    assert set(told(registry).values()) == {0}
    for outcome in ("queue_full", "gone"):
        metrics.request("http", outcome)
    metrics.batch(BatchStats(rows=5, queue_seconds=0.2, infer_seconds=0.5))
    for _ in range(2):
        metrics.answered("http", 0.001, 0.2, 0.5, 0.002)
    other.request("grpc", "internal")
    expected = {
        "nv_inference_request_success": 2,
        "nv_inference_request_failure": 1,
        "nv_inference_count": 5,
        "nv_inference_exec_count": 1,
        "nv_inference_request_duration_us": 1_406_000,
        "nv_inference_queue_duration_us": 400_000,
        "nv_inference_compute_input_duration_us": 2_000,
        "nv_inference_compute_infer_duration_us": 1_000_000,
        "nv_inference_compute_output_duration_us": 4_000,
    }
    assert told(registry) == told(registry) == expected
    metrics.answered("http", 0.0, 0.1, 0.0, 0.0)
    assert told(registry)["nv_inference_queue_duration_us"] == 500_000
    assert told(registry, "other")["nv_inference_request_failure"] == 1
