"""The search with a real Bento, and how its trials are scored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mlctl.bento.packaging import BuiltBento
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.loadtest import tuning
from mlctl.loadtest.figures import LatencyRecord, summarize
from mlctl.loadtest.runs import LoadProfile, Protocols, RequestShape
from mlctl.loadtest.server import serving
from mlctl.loadtest.tuning import Settings, Tuned, TuningTrial, divisions, judge, search
from mlctl.services.layout.bento_store import BentoInfo, find_bento

LOAD = LoadProfile(0.3, clients=(1, 4))
FIRST = {"MLCTL_WORKERS": 1, "MLCTL_THREADS": 1}


def figures(rate: float, p99: float, failed: int = 0) -> LatencyRecord:
    record = LatencyRecord(latencies=[p99 / 1e3] * int(rate))
    record.errors.update({"503 queue_full": failed} if failed else {})
    return record


def test_judge__closed_loops__takes_the_most_answers_within_the_goal() -> None:
    slow = summarize(figures(100, 5), 1.0, clients=1)
    fast = summarize(figures(300, 9), 1.0, clients=8)
    late = summarize(figures(900, 30), 1.0, clients=64)
    rejected = summarize(figures(800, 1, failed=1), 1.0, clients=32)
    assert judge((slow, fast, late, rejected), 10.0) == (fast, True)
    best, fits = judge((late, replace(late, p99_ms=20.0)), 10.0)
    assert (fits, best.p99_ms) == (False, 20.0)


def test_judge__open_loops__takes_the_least_cpu() -> None:
    run = summarize(figures(100, 5), 1.0, rate=100.0)
    best, _ = judge((run, replace(run, per_cpu_second=400.0)), 10.0)
    assert best.per_cpu_second == 400.0


def test_judge__no_answer__does_not_fit() -> None:
    _, fits = judge((summarize(LatencyRecord(), 1.0, clients=1),), 10.0)
    assert not fits


def test_divisions__of_cores__use_no_more_than_there_are() -> None:
    assert list(divisions(1)) == [(1, 1)]
    assert list(divisions(2)) == [(1, 1), (1, 2), (2, 1)]
    assert list(divisions(6)) == [
        (1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1),
    ]  # fmt: skip


def simulated(settings: Settings, _number: int) -> TuningTrial:
    """Score two workers as the fastest, and batches of fewer than 16 rows as too small."""
    workers, rows = settings["MLCTL_WORKERS"], settings.get("MLCTL_MAX_ROWS", 32)
    workers = min(workers, 2)
    run = summarize(figures(10 * workers * min(rows, 16), 2.0 * rows / workers), 1.0, clients=1)
    best, fits = judge((run,), 20.0)
    return TuningTrial(settings, (run,), best, fits)


def test_search__formula__finds_the_best_within_the_goal() -> None:
    trials = search(4, 32, simulated)
    tuned = Tuned(max(trials, key=lambda each: (each.fits, each.best.per_second)), 20.0, ())
    assert tuned.environment_lines().splitlines() == [
        "MLCTL_WORKERS=2", "MLCTL_THREADS=1", "MLCTL_MAX_ROWS=16",
    ]  # fmt: skip
    settings = [tuple(each.settings.items()) for each in trials]
    assert len(settings) == len(set(settings)) == 6 + 2  # divisions of 4 cores; 16 and 8 rows


def test_search__gain_within_the_noise__keeps_the_first() -> None:
    run = summarize(figures(100, 5), 1.0, clients=1)
    first = TuningTrial({"a": 1}, (run,), run, True)
    more = replace(run, per_second=102.0)
    assert not TuningTrial({"a": 2}, (more,), more, True).beats(first)
    assert TuningTrial({"a": 2}, (run,), replace(run, per_second=104.0), True).beats(first)


def test_trial__that_fits__beats_any_other() -> None:
    run = summarize(figures(100, 5), 1.0, clients=1)
    assert TuningTrial({}, (run,), replace(run, per_second=1.0), True).beats(
        TuningTrial({}, (run,), run, False)
    )
    late = TuningTrial({}, (run,), replace(run, p99_ms=9.0), False)
    assert TuningTrial({}, (run,), replace(run, p99_ms=7.0), False).beats(late)


@pytest.fixture
def bento(
    built: BuiltBento, store_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> BentoInfo:
    monkeypatch.setenv("BENTOML_HOME", str(store_home))
    monkeypatch.setenv("MLCTL_HOME", str(tmp_path / "home"))
    return find_bento(built.tag)


@pytest.mark.slow
def test_tune__real_servers__reports_each_trial(
    bento: BentoInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[str] = []
    monkeypatch.setattr(tuning, "search", lambda _cores, _rows, measure: [measure(FIRST, 1)])
    tuned = tuning.tune(bento, RequestShape(), LOAD, 5000.0, reported.append)
    assert reported == ["Trial 1: MLCTL_WORKERS=1, MLCTL_THREADS=1 ..."]
    assert tuned.best.fits
    (trial,) = tuned.as_dict()["trials"]
    assert [run["clients"] for run in trial["runs"]] == [1, 4]
    assert tuned.best.best.answered > 10


@pytest.mark.slow
def test_serving__server_that_does_not_start__reports_its_log(bento: BentoInfo) -> None:
    wrong = {"MLCTL_THREADS": "none"}
    with (
        pytest.raises(MlctlError, match="MLCTL_THREADS") as caught,
        serving(bento.tag, Protocols.HTTP, wrong),
    ):
        pytest.fail("it was ready")
    assert caught.value.code is ErrorCode.UNAVAILABLE
