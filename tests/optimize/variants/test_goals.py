"""The gates on accuracy, from answers to verdicts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.home import HOME_VARIABLE
from mlctl.optimize.inputs.prepare import OptimizeOptions
from mlctl.optimize.metrics.parity import compare
from mlctl.optimize.metrics.scores import compare_metric, load_metric
from mlctl.optimize.pipeline import NothingPassedError, optimize
from mlctl.optimize.recipes.base import Target
from mlctl.optimize.recipes.discovery import select
from mlctl.optimize.variants.goals import Goals, accuracy_faults, require_labels_for
from tests.support.memory_catalog import MemoryCatalog
from tests.support.sources import onnx_source, save_rows

RANDOM = np.random.default_rng(3)
FORECAST = RANDOM.normal(0.0, 3.0, (200, 24)).cumsum(axis=1)
FORECAST -= FORECAST.mean(axis=0)  # so that 1.5 times as much has the same centred cosine
SCORES = np.eye(4)[np.arange(200) % 4] + RANDOM.normal(0, 0.1, (200, 4))


def faults(found: dict[str, np.ndarray], want: dict[str, np.ndarray], goals: Goals) -> list[str]:
    return list(accuracy_faults(compare(want, found), None, goals))


def test_gates__a_forecast_times_one_and_a_half_without_labels__fails() -> None:
    found = faults({"forecast": FORECAST * 1.5}, {"forecast": FORECAST}, Goals())
    assert found == ["relative L2 0.5 is over the limit 0.2"]
    assert not faults({"forecast": FORECAST * 1.01}, {"forecast": FORECAST}, Goals())


def test_gates__the_second_output_is_wrong__is_named() -> None:
    want = {"scores": SCORES, "forecast": FORECAST}
    found = faults({"scores": SCORES, "forecast": FORECAST * 1.5}, want, Goals())
    assert found == ["relative L2 of output 'forecast' 0.5 is over the limit 0.2"]
    # A metric judges the first output only, so the default limits hold for the other.
    metric, labels = load_metric("accuracy"), np.arange(200) % 4
    outputs = {"scores": SCORES, "forecast": FORECAST * 1.5}
    score = compare_metric(metric, want, outputs, labels)
    assert list(accuracy_faults(compare(want, outputs), score, Goals())) == found


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e6])
def test_gates__an_error_metric__allows_the_same_share_at_any_scale(size: float) -> None:
    labels = FORECAST * size
    metric = load_metric("rmse")
    want = {"forecast": labels + size}
    goals = Goals().resolved(metric, metric.score(want, labels))
    for factor, passes in ((1.001, True), (1.02, False)):
        outputs = {"forecast": labels + size * factor}
        score = compare_metric(metric, want, outputs, labels)
        assert (not list(accuracy_faults(compare(want, outputs), score, goals))) is passes


def test_gates__an_absolute_limit__is_a_minimum_of_scores_and_a_maximum_of_errors() -> None:
    labels = np.arange(200) % 4
    score = compare_metric(load_metric("accuracy"), {"y": SCORES}, {"y": SCORES}, labels)
    parity = compare({"y": SCORES}, {"y": SCORES})
    assert score.value == 1.0
    assert not list(accuracy_faults(parity, score, Goals(score_limit=1.0)))
    wrong = np.roll(labels, 1)
    score = compare_metric(load_metric("accuracy"), {"y": SCORES}, {"y": SCORES}, wrong)
    assert list(accuracy_faults(parity, score, Goals(score_limit=0.5))) == [
        "score 0 is under the limit 0.5"
    ]
    want = {"y": FORECAST}
    score = compare_metric(load_metric("rmse"), want, want, FORECAST + 2.0)
    parity = compare(want, want)
    assert not list(accuracy_faults(parity, score, Goals(score_limit=2.1)))
    assert list(accuracy_faults(parity, score, Goals(score_limit=1.9))) == [
        "score 2 is over the limit 1.9"
    ]


@pytest.mark.parametrize(("goals", "champion"), [(Goals(score_limit=0.9), False), (Goals(), True)])
def test_gates__an_absolute_limit_without_labels__is_rejected(goals: Goals, champion: bool) -> None:
    with pytest.raises(MlctlError, match="--min-accuracy cannot be judged: the rows have no"):
        require_labels_for(goals, labelled=False, champion=champion)
    require_labels_for(goals, labelled=True, champion=champion)


def test_champion__its_recorded_score__is_the_limit_on_the_same_rows_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    catalog = MemoryCatalog([onnx_source(tmp_path / "registered")])
    rows = np.random.default_rng(1).standard_normal((64, 4), dtype=np.float32)
    labels = np.arange(64) % 4
    data = save_rows(tmp_path / "rows.npz", {"x": rows, "labels": labels})
    recipes = select(["fp32"], Target.CPU)
    options = OptimizeOptions(against_champion=True)

    with pytest.raises(MlctlError) as missing:
        optimize("tiny", data, catalog=catalog, options=options, recipes=recipes)
    assert missing.value.code is ErrorCode.MODEL_NOT_FOUND

    first = optimize("tiny", data, catalog=catalog, recipes=recipes)
    catalog.write_champion(first.digest)
    again = optimize("tiny", data, catalog=catalog, options=options, recipes=recipes)
    score = first.source_score
    assert score is not None
    evidence = first.bundle.manifest.evidence
    assert evidence.score == score
    assert again.judged[0].passed

    with pytest.raises(NothingPassedError, match=r"score .* is under the limit"):
        optimize(
            "tiny",
            data,
            catalog=catalog,
            goals=Goals(score_limit=min(1.0, score + 0.1)),
            recipes=recipes,
        )

    moved = save_rows(tmp_path / "moved.npz", {"x": rows + 1, "labels": labels})
    with pytest.raises(MlctlError, match="cannot be compared: it was judged by accuracy on other"):
        optimize("tiny", moved, catalog=catalog, options=options, recipes=recipes)
