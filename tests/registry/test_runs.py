"""Runs in a real sqlite MLflow."""

from __future__ import annotations

from typing import Any

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.registry.mlflow_catalog import MlflowCatalog
from mlctl.registry.runs import EXPERIMENT, MetricSample, MlflowRuns
from mlctl.registry.tracking import TRACKING_VARIABLE

pytestmark = pytest.mark.slow

SAMPLES = [MetricSample("weight", float(n), 1000.0 + n, n) for n in range(2500)]


@pytest.fixture
def client(catalog: MlflowCatalog) -> Any:
    assert catalog.list_models()
    from mlflow import MlflowClient

    return MlflowClient()


def test_runs__writing_twice__is_idempotent(client: Any) -> None:
    for _ in range(2):  # two processes, of which the first was killed at the very end
        runs = MlflowRuns()
        ref = runs.open("shop-1", "shop 1", 1000.5, {"mlctl.deployment": "shop"})
        runs.log(ref, SAMPLES)
        runs.close(ref, "KILLED", 1250.0, {"mlctl.outcome": "inconclusive"})
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment.artifact_location.startswith("file:///")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_id, run.info.experiment_id) == (ref.run, ref.experiment)
    assert (run.info.status, run.info.start_time, run.info.end_time) == (
        "KILLED",
        1_000_500,
        1_250_000,
    )
    assert run.data.tags["mlctl.outcome"] == "inconclusive"
    history = client.get_metric_history(ref.run, "weight")
    assert [(each.step, each.value) for each in history] == [(s.step, s.value) for s in SAMPLES]
    other = MlflowRuns().open("shop-2", "shop 2", 1.0, {"why": "x" * 9000})
    assert other.run != ref.run


def test_runs__an_unreachable_registry__says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRACKING_VARIABLE, "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(MlctlError) as caught:
        MlflowRuns().open("shop-1", "shop 1", 1.0, {})
    assert caught.value.code is ErrorCode.REGISTRY_UNAVAILABLE
