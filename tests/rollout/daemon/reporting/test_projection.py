"""Runs in memory; those of a real MLflow are in tests/registry/test_runs.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from bundle.errors import ErrorCode, MlctlError
from registry.runs import MetricSample, RunRef
from rollout.daemon.reporting.cursors import Cursor, EventCursors, run_reader
from rollout.daemon.reporting.projection import Projection, link
from rollout.domain.operator_commands import OperatorCommand
from rollout.domain.state_machine import RolloutPhase
from rollout.journal.journal import Journal
from rollout.journal.schema import transaction
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


def project(journal: Journal, cursors: EventCursors, runs: MemoryRuns) -> bool:
    """One pass of a process that knows nothing of the ones before."""
    return Projection("shop", journal, cursors, runs).advance()


def test_a_rollout_becomes_a_run_with_series(
    played: Played, journal: Journal, cursors: EventCursors
) -> None:
    runs = MemoryRuns()
    played.until(RolloutPhase.DONE)
    assert not project(journal, cursors, runs)
    run = runs.only
    assert run["status"] == "FINISHED"
    assert run["tags"]["mlctl.outcome"] == "promoted"
    assert run["tags"]["mlctl.to_digest"].startswith("bb")
    assert run["tags"]["mlctl.verdict"] == "proof"
    names = {sample.name for sample in run["samples"]}
    assert {"weight", "candidate/p99_ms", "log10_e/errors_vs_limit"} <= names
    assert cursors.owed("shop") == ()
    assert not project(journal, cursors, runs)
    assert runs.calls == ["open", "log", "close"]


def test_piece_by_piece_it_is_the_same_run(
    played: Played, journal: Journal, cursors: EventCursors
) -> None:
    runs, whole = MemoryRuns(), MemoryRuns()
    for phase in (RolloutPhase.SHIFT, RolloutPhase.BAKE):
        played.until(phase)
        assert project(journal, cursors, runs)  # each time another process
    played.until(RolloutPhase.DONE)
    assert not project(journal, cursors, runs)
    with transaction(cursors._db):
        cursors._db.execute("delete from cursor")
    project(journal, cursors, whole)
    assert runs.only["samples"] == whole.only["samples"]
    assert runs.only["tags"] == whole.only["tags"]


@pytest.mark.parametrize("failed", [1, 2, 3])
def test_a_registry_that_is_away_is_caught_up_with(
    played: Played, journal: Journal, cursors: EventCursors, failed: int
) -> None:
    """Whichever call fails, the next process writes the rest."""
    runs = MemoryRuns(fails=failed)
    played.until(RolloutPhase.DONE)
    with pytest.raises(MlctlError):
        project(journal, cursors, runs)
    place = cursors.cursor("shop", run_reader(1))
    assert place is not None
    assert place.body["error"] == "the registry does not answer"
    assert not project(journal, cursors, runs)
    assert runs.only["status"] == "FINISHED"
    place = cursors.cursor("shop", run_reader(1))
    assert place is not None
    assert "error" not in place.body


@pytest.mark.parametrize(
    ("command", "outcome", "status"),
    [
        (OperatorCommand.ROLLBACK, "rolled_back", "FAILED"),
    ],
)
def test_how_it_ended_is_how_the_run_ends(
    played: Played,
    journal: Journal,
    cursors: EventCursors,
    command: OperatorCommand,
    outcome: str,
    status: str,
) -> None:
    runs = MemoryRuns()
    played.until(RolloutPhase.SHIFT)
    journal.request("shop", command, "it smells")
    played.until(RolloutPhase.DONE)
    project(journal, cursors, runs)
    assert runs.only["status"] == status
    assert runs.only["tags"]["mlctl.outcome"] == outcome


def test_inconclusive_is_neither_good_nor_bad(
    played: Played, journal: Journal, cursors: EventCursors
) -> None:
    runs = MemoryRuns()
    played.until(RolloutPhase.SHIFT)
    played.until(RolloutPhase.DONE, requests=0)
    project(journal, cursors, runs)
    assert (runs.only["status"], runs.only["tags"]["mlctl.outcome"]) == ("KILLED", "inconclusive")


def test_each_rollout_is_a_run(played: Played, journal: Journal, cursors: EventCursors) -> None:
    runs = MemoryRuns()
    played.until(RolloutPhase.DONE)
    second = played.begin("tiny:cc")
    assert project(journal, cursors, runs)
    assert cursors.owed("shop") == (second,)
    assert [run["status"] for run in runs.runs.values()] == ["FINISHED", ""]


def test_one_that_ended_because_the_deployment_was_taken_down(
    played: Played, journal: Journal, cursors: EventCursors
) -> None:
    runs = MemoryRuns()
    played.until(RolloutPhase.SHIFT)
    journal.retire("shop")
    assert not project(journal, cursors, runs)
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
def test_the_link_leads_to_the_run_and_tells_no_password(uri: str | None, url: str | None) -> None:
    found = link(Cursor(3, {"experiment": "7", "run": "r", "closed": True}), uri)
    assert found is not None
    assert (found.url, found.closed) == (url, True)
    assert link(None, uri) is None
