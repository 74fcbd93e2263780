"""Rollouts as MLflow runs in a separate experiment.

Writing is idempotent: a run is found by its key, and MLflow stores a value of one series, step
and time once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlctl.core.quiet import quiet
from mlctl.core.text import printable
from mlctl.registry.tracking import configure_tracking, registry_errors

EXPERIMENT = "mlctl-rollouts"
KEY_TAG = "mlctl.rollout_key"
_BATCH = 1000  # MLflow's limits of one call
_MAX_TAG_LENGTH = 5000


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One value of a series: `at` in wall-clock seconds, `step` in seconds since the start."""

    name: str
    value: float
    at: float
    step: int


@dataclass(frozen=True, slots=True)
class RunRef:
    """The ids of a run and its experiment."""

    experiment: str
    run: str


class MlflowRuns:
    """The runs in the registry that MLflow's tracking URI names.

    Every method raises REGISTRY_UNAVAILABLE when the store fails.
    """

    def __init__(self) -> None:
        self._client: Any = None
        self._experiment = ""

    def open(self, key: str, name: str, started: float, tags: Mapping[str, str]) -> RunRef:
        """Return the run with that key, created if needed; `started` is in wall-clock seconds."""
        with quiet(), registry_errors():
            client = self._connected()
            query = f"tags.`{KEY_TAG}` = '{key}'"
            found = client.search_runs([self._experiment], query, max_results=1)
            if not found:
                start = int(started * 1000)
                all_tags = {KEY_TAG: key, **_short(tags)}
                found = [client.create_run(self._experiment, start, all_tags, run_name=name)]
            return RunRef(self._experiment, found[0].info.run_id)

    def log(self, ref: RunRef, samples: Sequence[MetricSample]) -> None:
        """Add values to the run's series; duplicates are stored once."""
        with quiet(), registry_errors():
            client = self._connected()
            from mlflow.entities import Metric

            for start in range(0, len(samples), _BATCH):
                batch = samples[start : start + _BATCH]
                metrics = [Metric(s.name, s.value, int(s.at * 1000), s.step) for s in batch]
                client.log_batch(ref.run, metrics=metrics)

    def close(self, ref: RunRef, status: str, ended: float, tags: Mapping[str, str]) -> None:
        """End the run as `status` (FINISHED, FAILED, KILLED) at `ended`, in wall-clock seconds."""
        with quiet(), registry_errors():
            client = self._connected()
            from mlflow.entities import RunTag

            client.log_batch(ref.run, tags=[RunTag(k, v) for k, v in _short(tags).items()])
            client.set_terminated(ref.run, status, int(ended * 1000))

    def _connected(self) -> Any:
        if self._client is None:
            configure_tracking(EXPERIMENT)
            from mlflow import MlflowClient

            client = MlflowClient()
            found: Any = client.get_experiment_by_name(EXPERIMENT)
            self._experiment = found.experiment_id
            self._client = client
        return self._client


def _short(tags: Mapping[str, str]) -> dict[str, str]:
    return {name: printable(value)[:_MAX_TAG_LENGTH] for name, value in tags.items()}
