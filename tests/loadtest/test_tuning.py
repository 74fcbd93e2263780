"""The search with a real Bento, and how its trials are scored and stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bento.packaging import BuiltBento
from bundle.errors import ErrorCode, MlctlError
from loadtest.figures import LatencyRecord, summarize
from loadtest.runs import LoadProfile, Protocols, RequestShape
from loadtest.server import serving
from loadtest.tuning import Goal, Tuned, Tuning, environment_of, judge
from rollout.drivers.local.ports import free_ports
from services.runtime.bento_store import BentoInfo, find_bento

LOAD = LoadProfile(0.3, clients=(1, 4))


def figures(rate: float, p99: float, failed: int = 0) -> LatencyRecord:
    record = LatencyRecord(latencies=[p99 / 1e3] * int(rate))
    record.errors.update({"503 queue_full": failed} if failed else {})
    return record


def test_judge__closed_loops__takes_the_most_answers_within_the_goal() -> None:
    slow = summarize(figures(100, 5), 1.0, clients=1)
    fast = summarize(figures(300, 9), 1.0, clients=8)
    late = summarize(figures(900, 30), 1.0, clients=64)
    rejected = summarize(figures(800, 1, failed=1), 1.0, clients=32)
    best, score = judge((slow, fast, late, rejected), 10.0)
    assert best is fast
    assert (score.fits, score.gain) == (True, 300.0)
    best, score = judge((late, replace(late, p99_ms=20.0)), 10.0)
    assert (score.fits, best.p99_ms) == (False, 20.0)


def test_judge__open_loops__takes_the_least_cpu() -> None:
    run = summarize(figures(100, 5), 1.0, rate=100.0)
    best, score = judge((run, replace(run, per_cpu_second=400.0)), 10.0)
    assert score.gain == best.per_cpu_second == 400.0


def test_judge__no_answer__does_not_fit() -> None:
    _, score = judge((summarize(LatencyRecord(), 1.0, clients=1),), 10.0)
    assert not score.fits


def test_environment_of__values__are_server_settings() -> None:
    values = {"threads": 2.0, "workers": 1.0, "max_rows": 16.0}
    assert environment_of(values) == {
        "MLCTL_THREADS": "2",
        "MLCTL_WORKERS": "1",
        "MLCTL_MAX_ROWS": "16",
    }


@pytest.fixture
def bento(
    built: BuiltBento, store_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> BentoInfo:
    monkeypatch.setenv("BENTOML_HOME", str(store_home))
    monkeypatch.setenv("MLCTL_HOME", str(tmp_path / "home"))
    return find_bento(built.tag)


def tune(bento: BentoInfo, ports: list[tuple[int, int]], reported: list[str]) -> Tuned:
    # No time for more than the first trial, which is always made.
    return Tuning(
        bento, RequestShape(), LOAD, Goal(5000.0, 0.0), ports.pop, reported.append, cores=1
    ).run()


@pytest.mark.slow
def test_tuning__interrupted_search__resumes(bento: BentoInfo) -> None:
    http, grpc = free_ports(2)
    reported: list[str] = []
    first = tune(bento, [(http, grpc)], reported)
    assert reported == ["Trial 1: threads 1, workers 1, max_rows 32 ..."]
    assert (first.fits, first.complete) == (True, False)
    assert first.environment_lines().splitlines()[0] == "MLCTL_THREADS=1"
    (trial,) = first.trials
    assert [run.clients for run in trial.runs] == [1, 4]
    assert trial.best.answered > 10
    # The second has no port to start a server on, and needs none.
    second = tune(bento, [], reported)
    assert second == first
    assert len(reported) == 1


@pytest.mark.slow
def test_serving__server_that_does_not_start__reports_its_log(
    bento: BentoInfo, tmp_path: Path
) -> None:
    http, grpc = free_ports(2)
    wrong = {"MLCTL_THREADS": "none"}
    with (
        pytest.raises(MlctlError, match="MLCTL_THREADS") as caught,
        serving(bento.tag, (http, grpc), Protocols.HTTP, tmp_path / "log", wrong),
    ):
        pytest.fail("it was ready")
    assert caught.value.code is ErrorCode.UNAVAILABLE
