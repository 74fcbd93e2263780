"""Each metric's formula, how scores are read, and how much worse one model is than another."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics as sklearn

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.data import Rows
from mlctl.optimize.metrics.scores import (
    CUSTOM_RESAMPLES,
    METRICS,
    Metric,
    compare_metric,
    load_metric,
    require_labels,
)

ACCURACY, TOP5, F1, RMSE = (METRICS[name] for name in ("accuracy", "top5", "f1", "rmse"))
MODULE = """
import numpy as np
calls = []

def share(outputs, labels):
    calls.append(len(labels))
    print("scoring")
    return np.mean(outputs["s"].argmax(axis=1) == labels)

def loss(outputs, labels):
    return np.array(np.mean((outputs["s"][:, 0] - labels) ** 2), np.float32)

loss.higher_is_better = False

def same_sign(outputs, source):
    return np.mean((outputs["s"] > 0) == (source["s"] > 0))

def listed(outputs, labels):
    return [1.0]

def not_finite(outputs, labels):
    return float("nan")

def missing_class(outputs, labels):
    if len(np.unique(labels)) < 40:
        raise ValueError("only some classes")
    return 1.0
"""


def scores(answers: np.ndarray, classes: int = 10, height: float = 1.0) -> dict[str, np.ndarray]:
    """Outputs whose highest score is at `answers`."""
    return {"s": (height * np.eye(classes)[answers]).astype(np.float32)}


LABELS = np.arange(300) % 10


def with_wrong(count: int) -> dict[str, np.ndarray]:
    """Outputs that are wrong in the first `count` rows."""
    return scores(np.where(np.arange(300) < count, (LABELS + 1) % 10, LABELS))


@pytest.fixture
def metrics_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_metrics.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "my_metrics", raising=False)


RNG = np.random.default_rng(4)
LOGITS = RNG.normal(size=(80, 3)).astype(np.float32)
SHARES = np.exp(LOGITS.astype(np.float64))
SHARES /= SHARES.sum(axis=1, keepdims=True)
CLASSES = np.arange(80) % 3
RELEVANCE = RNG.integers(0, 4, (80, 3)).astype(np.float64)
COUNTS = RNG.integers(0, 4, 80).astype(np.float64)  # of a resample


def expected_auc(shares: np.ndarray, classes: np.ndarray) -> float:
    several = {"multi_class": "ovr"} if shares.ndim == 2 else {}
    return float(sklearn.roc_auc_score(classes, shares, sample_weight=COUNTS, **several))


@pytest.mark.parametrize(
    ("name", "output", "labels", "expected"),
    [
        ("auc", LOGITS, CLASSES, lambda: expected_auc(SHARES, CLASSES)),
        ("auc", SHARES, CLASSES, lambda: expected_auc(SHARES, CLASSES)),
        (
            "auc",
            LOGITS[:, 0].round(1),
            CLASSES % 2,
            lambda: expected_auc(LOGITS[:, 0].round(1), CLASSES % 2),
        ),
        (
            "log_loss",
            LOGITS,
            CLASSES,
            lambda: sklearn.log_loss(CLASSES, SHARES, sample_weight=COUNTS),
        ),
        (
            "log_loss",
            SHARES[:, :1],
            CLASSES % 2,
            lambda: sklearn.log_loss(CLASSES % 2, SHARES[:, 0], sample_weight=COUNTS),
        ),
        (
            "rmse",
            LOGITS[:, 0],
            RELEVANCE[:, 0],
            lambda: sklearn.root_mean_squared_error(
                RELEVANCE[:, 0], LOGITS[:, 0], sample_weight=COUNTS
            ),
        ),
        (
            "mae",
            LOGITS,
            RELEVANCE,
            lambda: sklearn.mean_absolute_error(RELEVANCE, LOGITS, sample_weight=COUNTS),
        ),
        (
            "r2",
            LOGITS,
            RELEVANCE,
            lambda: sklearn.r2_score(RELEVANCE, LOGITS, sample_weight=COUNTS),
        ),
        (
            "ndcg",
            LOGITS,
            RELEVANCE,
            lambda: sklearn.ndcg_score(RELEVANCE, LOGITS, sample_weight=COUNTS),
        ),
        ("map", LOGITS, RELEVANCE, lambda: average_precision(LOGITS, RELEVANCE > 0)),
    ],
)
def test_metric__a_resample__has_scikit_learns_value(
    name: str, output: np.ndarray, labels: np.ndarray, expected: Callable[[], float]
) -> None:
    outputs = {"y": output}
    found = METRICS[name].statistic(outputs, labels, outputs)(COUNTS)
    assert found == pytest.approx(expected(), rel=1e-6)


def average_precision(scores: np.ndarray, relevant: np.ndarray) -> float:
    """The mean over queries: scikit-learn's function takes one at a time."""
    values = [
        sklearn.average_precision_score(truth, row) if truth.any() else 0.0
        for truth, row in zip(relevant, scores, strict=True)
    ]
    return float(np.average(values, weights=COUNTS))


def test_ranking__labels_of_another_form__are_rejected() -> None:
    for labels in (RELEVANCE[:, 0], -RELEVANCE):
        outputs = {"y": LOGITS[:, : labels[:1].size]}
        with pytest.raises(MlctlError, match=r"needs labels of shape \[rows, candidates\]"):
            METRICS["ndcg"].score(outputs, labels)


def test_accuracy__scores__is_the_share_of_right_answers() -> None:
    assert ACCURACY.score(with_wrong(30), LABELS) == pytest.approx(0.9)


def test_top5__ties__go_to_the_first_class() -> None:
    falling = -np.arange(10.0) * np.ones((10, 1))
    assert TOP5.score({"s": falling}, np.arange(10)) == 0.5
    assert TOP5.score({"s": np.zeros((10, 10))}, np.arange(10)) == 0.5


def test_f1__classes_that_occur__are_averaged() -> None:
    labels, answers = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1])
    expected = np.mean([2 * 1 / (1 + 2), 2 * 2 / (3 + 2)])
    assert F1.score(scores(answers, classes=7), labels) == pytest.approx(expected)


def test_rmse__quantities__is_the_root_of_the_mean_square() -> None:
    labels = np.array([0.0, 0.0, 0.0, 0.0])
    for shape in ((4,), (4, 1)):
        outputs = {"y": np.array([3.0, -3.0, 3.0, 3.0], np.float32).reshape(shape)}
        assert RMSE.score(outputs, labels) == pytest.approx(3.0)
    pairs = {"y": np.array([[3.0, 4.0], [0.0, 0.0]])}
    assert RMSE.score(pairs, np.zeros((2, 2))) == pytest.approx(2.5)


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
@pytest.mark.parametrize("values", [[0.2, 0.6, 0.4, 0.9], [-0.2, 0.2, -3.0, 5.0]])
def test_accuracy__one_score__decides_between_two_classes(
    shape: tuple[int, ...], values: list[float]
) -> None:
    outputs = {"s": np.array(values, np.float32).reshape(shape)}
    assert ACCURACY.score(outputs, np.array([0, 1, 0, 1])) == 1.0
    assert F1.score(outputs, np.array([0, 1, 0, 1])) == 1.0


def test_accuracy__one_score__has_the_threshold_of_the_reference() -> None:
    labels = np.array([0, 1] * 20)
    reference = {"s": np.where(labels == 1, 0.8, 0.2)}
    lower = {"s": reference["s"] - 0.25}
    assert compare_metric(ACCURACY, reference, lower, labels).value == 1.0


@pytest.mark.parametrize(
    ("metric", "output", "labels", "reason"),
    [
        (ACCURACY, np.zeros((9, 4, 5), np.float32), LABELS[:9], "does not hold one score for each"),
        (F1, np.zeros((9, 4, 5, 5), np.float32), LABELS[:9], "does not hold one score for each"),
        (ACCURACY, np.zeros(9, np.int64), LABELS[:9], "does not hold one score for each class"),
        (TOP5, np.zeros((9, 5), np.float32), LABELS[:9], "needs more than 5 classes"),
        (F1, np.zeros((9, 5), np.float32), LABELS[:9], "from 0 to 8, but the model has 5 classes"),
        (ACCURACY, np.zeros((9, 5), np.float32), LABELS[:9] - 1, "labels range from -1 to 7"),
        (RMSE, np.zeros((9, 3), np.float32), np.zeros(9), "'s' has 3 values .* the labels have 1"),
    ],
)
def test_metric__an_unreadable_output__is_named(
    metric: Metric, output: np.ndarray, labels: np.ndarray, reason: str
) -> None:
    with pytest.raises(MlctlError, match=reason) as caught:
        metric.score({"s": output}, labels)
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_compare_metric__equal_outputs__have_no_drop_and_no_interval() -> None:
    result = compare_metric(ACCURACY, with_wrong(3), with_wrong(3), LABELS)
    assert (result.reference, result.value) == (0.99, 0.99)
    assert (result.drop.low, result.drop.value, result.drop.high) == (0.0, 0.0, 0.0)


def test_compare_metric__rounding_far_from_a_decision__has_a_tiny_interval() -> None:
    copy = {"s": with_wrong(0)["s"] + np.float32(1e-6) * np.eye(10, dtype=np.float32)[LABELS]}
    drop = compare_metric(ACCURACY, with_wrong(0), copy, LABELS).drop
    assert drop.value == 0.0
    assert 0.0 < drop.high < 1e-6


def test_compare_metric__a_change_near_a_decision__has_a_wide_interval() -> None:
    near = with_wrong(0)["s"].copy()
    near[0, 1] = 0.999
    drop = compare_metric(ACCURACY, with_wrong(0), {"s": near}, LABELS).drop
    assert drop.value == 0.0
    assert 0.0099 < drop.high <= 0.01


def test_compare_metric__a_tie_that_moved__counts_as_a_decision() -> None:
    flat = {"s": np.zeros((300, 10))}
    tilted = {"s": flat["s"] + 1e-9 * np.eye(10)[0]}
    assert compare_metric(ACCURACY, flat, flat, LABELS).drop.high == 0.0
    drop = compare_metric(ACCURACY, flat, tilted, LABELS).drop
    assert drop.value == 0.0
    assert drop.high == pytest.approx(3 / 300)


def test_compare_metric__a_rising_score__keeps_the_interval_of_few_rows() -> None:
    drop = compare_metric(ACCURACY, with_wrong(1), with_wrong(0), LABELS).drop
    assert drop.value == pytest.approx(-1 / 300)
    assert drop.high > 0.0


def test_compare_metric__any_drop__lies_within_its_interval() -> None:
    result = compare_metric(ACCURACY, with_wrong(3), with_wrong(18), LABELS)
    assert result.drop.value == 0.05
    assert 0.02 <= result.drop.low < 0.035
    assert 0.065 < result.drop.high <= 0.08


def test_compare_metric__a_larger_error__is_a_drop() -> None:
    random = np.random.default_rng(0)
    labels = random.normal(size=300)
    noise = random.normal(size=300)
    good, bad = {"y": labels + 0.1 * noise}, {"y": labels + 0.2 * noise}
    result = compare_metric(RMSE, good, bad, labels)
    assert result.drop.value == pytest.approx(0.1, abs=0.01)
    assert 0.08 < result.drop.low < result.drop.value < result.drop.high < 0.12
    assert compare_metric(RMSE, bad, good, labels).drop.high < 0


def test_load_metric__an_unknown_name__suggests_similar_ones() -> None:
    with pytest.raises(MlctlError, match="no metric 'acuracy'; did you mean 'accuracy'") as caught:
        load_metric("acuracy")
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert load_metric("f1") is F1


@pytest.mark.usefixtures("metrics_module")
def test_load_metric__a_function__is_a_metric(capsys: pytest.CaptureFixture[str]) -> None:
    metric = load_metric("my_metrics:share")
    assert (metric.name, metric.higher_is_better) == ("my_metrics:share", True)
    result = compare_metric(metric, with_wrong(3), with_wrong(18), LABELS)
    built_in = compare_metric(ACCURACY, with_wrong(3), with_wrong(18), LABELS)
    assert (result.reference, result.value) == (built_in.reference, built_in.value)
    assert result.drop.value == built_in.drop.value
    assert result.drop.high == pytest.approx(built_in.drop.high, abs=0.01)
    calls = sys.modules["my_metrics"].calls
    assert len(calls) < 2 * CUSTOM_RESAMPLES + 10
    assert set(calls) == {300}
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("metrics_module")
def test_custom_metric__no_difference__is_as_uncertain_as_few_rows() -> None:
    metric = load_metric("my_metrics:share")
    moved = {"s": with_wrong(0)["s"] * np.float32(1.1)}
    assert compare_metric(metric, with_wrong(0), with_wrong(0), LABELS).drop.high == 0.0
    drop = compare_metric(metric, with_wrong(0), moved, LABELS).drop
    assert drop.value == 0.0
    assert drop.high == pytest.approx(3 / 300)


@pytest.mark.usefixtures("metrics_module")
def test_custom_metric__no_labels__compares_with_the_sources_answers() -> None:
    metric = load_metric("my_metrics:same_sign", labelled=False)
    rows = Rows({"x": np.zeros((300, 1))}, None)
    labels = metric.labels_of(rows)
    assert labels is not None
    source = {"s": np.linspace(-1, 1, 300)[:, None]}
    shifted = {"s": source["s"] + 0.1}
    assert metric.score(source, labels) == 1.0
    result = compare_metric(metric, source, shifted, require_labels(rows, metric))
    assert result.drop.value == pytest.approx(15 / 300)
    assert 15 / 300 < result.drop.high < 30 / 300


@pytest.mark.usefixtures("metrics_module")
def test_custom_metric__lower_is_better__is_respected() -> None:
    metric = load_metric("my_metrics:loss")
    labels = np.linspace(0, 1, 300)
    good, bad = {"s": labels[:, None]}, {"s": labels[:, None] + 0.5}
    assert compare_metric(metric, good, bad, labels).drop.value == pytest.approx(0.25)


@pytest.mark.usefixtures("metrics_module")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("listed", "'my_metrics:listed' returned a value of type list, expected a finite number"),
        ("not_finite", "returned nan, expected a finite number"),
        ("missing_class", "metric 'my_metrics:missing_class' on resampled rows .*only some cl"),
    ],
)
def test_custom_metric__no_number__is_named(name: str, reason: str) -> None:
    metric = load_metric(f"my_metrics:{name}")
    labels = np.arange(40)
    with pytest.raises(MlctlError, match=reason) as caught:
        compare_metric(metric, {"s": np.zeros((40, 1))}, {"s": np.ones((40, 1))}, labels)
    assert caught.value.code is ErrorCode.INVALID_INPUT


@pytest.mark.usefixtures("metrics_module")
def test_load_metric__a_missing_function__is_named() -> None:
    with pytest.raises(MlctlError, match="has no function 'shares'; did you mean 'share'"):
        load_metric("my_metrics:shares")


@pytest.mark.parametrize("metric", [ACCURACY, F1])
def test_scores__a_tie_of_the_source__counts_as_the_class_of_the_source(metric: Metric) -> None:
    source = {"s": np.tile([[0.5, 0.5, 0.0]], (40, 1))}
    found = {"s": source["s"] + np.array([0.0, 1e-8, 0.0])}
    labels = np.arange(40) % 2
    assert compare_metric(metric, source, found, labels).drop.value == 0
    other = {"s": np.tile([[0.4, 0.1, 0.5]], (40, 1))}
    assert compare_metric(metric, source, other, labels).drop.value > 0
