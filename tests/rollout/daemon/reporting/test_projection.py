"""Runs in memory; those of a real MLflow are in tests/registry/test_runs.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.registry.runs import MetricSample, RunRef
from mlctl.rollout.daemon.reporting.projection import Projection, link
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.operator_commands import OperatorCommand
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.records import Delivery, run_sink
from mlctl.rollout.journal.schema import transaction
from tests.support.played import Played


@dataclass
class MemoryRuns:
    """Keeps every value once, as MLflow does; call number `fails` of all fails."""

    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    fails: int = 0
    called: int = 0
    calls: list[str] = field(default_factory=list)

    def open(self, key: str, name: str, begun: float, tags: Mapping[str, str]) -> RunRef:
        self._call("open")
        run = {"name": name, "begun": begun, "tags": dict(tags), "samples": set(), "status": ""}
        self.runs.setdefault(key, run)
        return RunRef("7", key)

    def log(self, ref: RunRef, samples: Sequence[MetricSample]) -> None:
        self._call("log")
        self.runs[ref.run]["samples"] |= set(samples)

    def close(self, ref: RunRef, status: str, ended: float, tags: Mapping[str, str]) -> None:
        self._call("close")
        self.runs[ref.run]["tags"] |= tags
        self.runs[ref.run] |= {"status": status, "ended": ended}

    def _call(self, what: str) -> None:
        self.called += 1
        if self.called == self.fails:
            raise MlctlError(ErrorCode.REGISTRY_UNAVAILABLE, "the registry does not answer")
        self.calls.append(what)

    @property
    def only(self) -> dict[str, Any]:
        (run,) = self.runs.values()
        return run


def project(journal: Journal, runs: MemoryRuns) -> bool:
    """One pass of a process that knows nothing of the ones before."""
    return Projection("shop", journal, runs).advance()


def test_projection__finished_rollout__one_run_with_series(
    played: Played, journal: Journal
) -> None:
    runs = MemoryRuns()
    played.until(RolloutPhase.DONE)
    assert not project(journal, runs)
    run = runs.only
    assert run["status"] == "FINISHED"
    assert run["tags"]["mlctl.outcome"] == "promoted"
    assert run["tags"]["mlctl.to_digest"].startswith("bb")
    assert run["tags"]["mlctl.verdict"] == "proof"
    names = {sample.name for sample in run["samples"]}
    assert {"weight", "candidate/p99_ms", "log10_e/errors_vs_limit"} <= names
    assert journal.unreported("shop") == ()
    assert not project(journal, runs)
    assert runs.calls == ["open", "log", "close"]


def test_projection__process_restarted_in_between__same_run(
    played: Played, journal: Journal
) -> None:
    runs, whole = MemoryRuns(), MemoryRuns()
    for phase in (RolloutPhase.SHIFT, RolloutPhase.BAKE):
        played.until(phase)
        assert project(journal, runs)  # each time another process
    played.until(RolloutPhase.DONE)
    assert not project(journal, runs)
    with transaction(journal._db):
        journal._db.execute("delete from delivery")
    project(journal, whole)
    assert runs.only["samples"] == whole.only["samples"]
    assert runs.only["tags"] == whole.only["tags"]


@pytest.mark.parametrize("failed", [1, 2, 3])
def test_projection__registry_fails_once__next_process_writes_the_rest(
    played: Played, journal: Journal, failed: int
) -> None:
    """Whichever call fails, the next process writes the rest."""
    runs = MemoryRuns(fails=failed)
    played.until(RolloutPhase.DONE)
    with pytest.raises(MlctlError):
        project(journal, runs)
    assert journal.delivery("shop", run_sink(1)).error == "the registry does not answer"
    assert not project(journal, runs)
    assert runs.only["status"] == "FINISHED"
    assert journal.delivery("shop", run_sink(1)).error is None


@pytest.mark.parametrize(
    ("command", "outcome", "status"),
    [
        (OperatorCommand.ROLLBACK, "rolled_back", "FAILED"),
    ],
)
def test_projection__rolled_back__run_failed(
    played: Played,
    journal: Journal,
    command: OperatorCommand,
    outcome: str,
    status: str,
) -> None:
    runs = MemoryRuns()
    played.until(RolloutPhase.SHIFT)
    journal.request("shop", command, "it smells")
    played.until(RolloutPhase.DONE)
    project(journal, runs)
    assert runs.only["status"] == status
    assert runs.only["tags"]["mlctl.outcome"] == outcome


def test_projection__inconclusive__run_killed(played: Played, journal: Journal) -> None:
    runs = MemoryRuns()
    played.until(RolloutPhase.SHIFT)
    played.until(RolloutPhase.DONE, requests=0)
    project(journal, runs)
    assert (runs.only["status"], runs.only["tags"]["mlctl.outcome"]) == ("KILLED", "inconclusive")


def test_projection__two_rollouts__two_runs(played: Played, journal: Journal) -> None:
    runs = MemoryRuns()
    played.until(RolloutPhase.DONE)
    second = played.begin("tiny:cc")
    assert project(journal, runs)
    assert journal.unreported("shop") == (second,)
    assert [run["status"] for run in runs.runs.values()] == ["FINISHED", ""]


def test_projection__deployment_taken_down__run_failed(played: Played, journal: Journal) -> None:
    runs = MemoryRuns()
    played.until(RolloutPhase.SHIFT)
    journal.retire("shop")
    assert not project(journal, runs)
    assert runs.only["status"] == "FAILED"
    assert runs.only["tags"]["mlctl.verdict"] == "operator"


@pytest.mark.parametrize(
    ("uri", "url"),
    [
        ("http://me:pw@mlflow:5000/x/", "http://mlflow:5000/x/#/experiments/7/runs/r"),
        ("sqlite:////home/mlflow.db", None),
        (None, None),
    ],
)
def test_link__server_address__run_url_without_password(uri: str | None, url: str | None) -> None:
    found = link(Delivery(3, body={"experiment": "7", "run": "r", "closed": True}), uri)
    assert found is not None
    assert (found.url, found.closed) == (url, True)
    assert link(Delivery(), uri) is None
