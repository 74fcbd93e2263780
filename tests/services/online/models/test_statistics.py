"""Configuration and statistics against what a host was really asked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.metrics.counts import BatchStats, Metrics
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.models.statistics import model_config, model_statistics
from mlctl.services.online.settings import ServerSettings
from tests.support.bundles import make_bundle
from tests.support.streams import counting_row, make_stream_bundle


def test_statistics__model_is_starting__are_unavailable(bundle: VerifiedBundle) -> None:
    host = ServedModel(bundle, ServerSettings(), registry=CollectorRegistry())
    for ask in (model_config, model_statistics):
        with pytest.raises(MlctlError, match="'tiny' is starting") as caught:
            ask(host)
        assert caught.value.code is ErrorCode.UNAVAILABLE


async def test_statistics__batches__are_counted_by_size(bundle: VerifiedBundle) -> None:
    host = ServedModel(bundle, ServerSettings(), registry=CollectorRegistry())
    await host.start()
    for rows in (1, 3, 3):
        await host.infer({"x": np.zeros((rows, 4), np.float32)})
    (found,) = model_statistics(host)["model_stats"]
    assert found["version"] == "1"  # a number, as perf_analyzer needs it
    assert (found["inference_count"], found["execution_count"]) == (7, 3)
    sizes = {each["batch_size"]: each["compute_infer"] for each in found["batch_stats"]}
    assert {size: each["count"] for size, each in sizes.items()} == {1: 1, 3: 2}
    assert all(each["ns"] > 0 for each in sizes.values())
    assert found["last_inference"] > 0
    await host.stop()


async def test_statistics__streamed_answer__is_one_answered_request(tmp_path: Path) -> None:
    """Clients that measure streams look for the version whose count of requests has grown."""

    bundle, registry = make_stream_bundle(tmp_path / "bundle"), CollectorRegistry()
    host = ServedModel(bundle, ServerSettings(), registry=registry)
    await host.start()

    def answered() -> int:
        return int(model_statistics(host)["model_stats"][0]["inference_stats"]["queue"]["count"])

    pieces = {"x": np.array([counting_row(3)], np.float32)}
    assert len([piece async for piece in host.stream(pieces)]) == 3
    assert answered() == 1
    left = host.stream(pieces)
    await anext(left)
    left.close()
    await host.infer(pieces)  # whoever asks over a protocol counts it
    assert answered() == 1
    await host.stop()
    assert answered() == 1
    labels = {"model": "tiny"}
    assert registry.get_sample_value("mlctl_request_seconds_count", labels) == 0


def test_tally__answers_and_failures__are_counted_apart() -> None:
    metrics = Metrics("m", CollectorRegistry())
    metrics.answered("http", 0.001, 0.002, 0.003, 0.004)
    for outcome in ("gone", "queue_full", "invalid_input"):
        metrics.request("http", outcome)
    metrics.batch(BatchStats(5, 0.0, 0.5))
    metrics.batch(BatchStats(1, 0.5, 0.25, streamed=True))
    tally = metrics.tally()
    assert (tally.answered, tally.failed) == (2, 2)
    assert (tally.parse, tally.queue, tally.infer, tally.serialize) == (0.001, 0.502, 0.253, 0.004)
    assert tally.batches == {5: (1, 0.5), 1: (1, 0.25)}


async def test_config__dependent_rows__has_no_dynamic_batching(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle", row_independent=False)
    host = ServedModel(bundle, ServerSettings(max_wait_ms=2), registry=CollectorRegistry())
    await host.start()
    config = model_config(host)
    assert "dynamic_batching" not in config
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}]
    await host.stop()


async def test_config__max_wait__is_in_microseconds(bundle: VerifiedBundle) -> None:
    host = ServedModel(bundle, ServerSettings(max_wait_ms=1.5), registry=CollectorRegistry())
    await host.start()
    batching = model_config(host)["dynamic_batching"]
    assert batching["max_queue_delay_microseconds"] == 1500
    await host.stop()


def test_config__max_rows_of_the_environment__only_lowers_the_batch_size(
    bundle: VerifiedBundle,
) -> None:
    async def main(max_rows: int) -> int:
        host = ServedModel(bundle, ServerSettings(max_rows=max_rows), registry=CollectorRegistry())
        await host.start()
        found = model_config(host)["max_batch_size"]
        await host.stop()
        return int(found)

    assert asyncio.run(main(8)) == 8
    assert asyncio.run(main(1000)) == 32
