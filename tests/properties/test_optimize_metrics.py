"""What holds for every comparison: signs, order, the oracle, and how often intervals are right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from mlctl.optimize.metrics.scores import METRICS, LabelKind, compare_metric

Case = tuple[dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray]
TRIALS = 200
names = st.sampled_from(sorted(METRICS))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Labels with two models' outputs [rows, 6], ties and equal outputs among them."""
    random = np.random.default_rng(draw(st.integers(0, 10_000)))
    rows, noise = draw(st.integers(8, 60)), draw(st.sampled_from([0.0, 1e-6, 0.5, 2.0]))
    labels = random.integers(0, 6, rows)
    before = np.eye(6)[labels] + random.normal(size=(rows, 6)).round(draw(st.integers(0, 8)))
    after = before + noise * random.normal(size=(rows, 6))
    return {"s": before}, {"s": after}, labels


def labels_for(name: str, labels: np.ndarray) -> np.ndarray:
    return np.eye(6)[labels] if METRICS[name].labels is LabelKind.QUANTITIES else labels


@settings(max_examples=40)
@given(cases(), names)
def test_compare_metric__sides_swapped__drop_changes_its_sign(case: Case, name: str) -> None:
    before, after, labels = case
    # Where the reference's classes tie, its class counts for both sides, so sides matter.
    apart = 1e-4 * np.arange(6)
    before, after = {"s": before["s"] + apart}, {"s": after["s"] + apart}
    labels = labels_for(name, labels)
    there = compare_metric(METRICS[name], before, after, labels, resamples=50)
    back = compare_metric(METRICS[name], after, before, labels, resamples=50)
    assert (there.reference, there.value) == (back.value, back.reference)
    assert there.drop.value == -back.drop.value
    assert there.drop.high == pytest.approx(-back.drop.low, abs=1e-12)
    assert there.drop.low <= there.drop.value <= there.drop.high


@settings(max_examples=40)
@given(cases(), names, st.randoms(use_true_random=False))
def test_compare_metric__rows_in_another_order__is_the_same(
    case: Case, name: str, random: np.random.Generator
) -> None:
    before, after, labels = case
    labels = labels_for(name, labels)
    order = list(range(len(labels)))
    random.shuffle(order)
    want = compare_metric(METRICS[name], before, after, labels, resamples=50)
    found = compare_metric(
        METRICS[name], {"s": before["s"][order]}, {"s": after["s"][order]}, labels[order],
        resamples=50,
    )  # fmt: skip
    assert found == want
    assert want == compare_metric(METRICS[name], before, after, labels, resamples=50)


@settings(max_examples=40)
@given(cases())
def test_metrics__any_answers__equal_scikit_learns(case: Case) -> None:
    _, after, labels = case
    answers = after["s"].argmax(axis=1)
    expected = f1_score(labels, answers, average="macro", zero_division=0.0)
    assert METRICS["f1"].score(after, labels) == pytest.approx(expected)
    best = np.argsort(-after["s"], axis=1, kind="stable")[:, :5]
    top5 = np.mean((best == labels[:, None]).any(axis=1))
    assert METRICS["top5"].score(after, labels) == pytest.approx(top5)


@pytest.mark.parametrize("harm", [0.001, 0.005, 0.02])
def test_compare_metric__rare_changes__upper_bound_holds(harm: float) -> None:
    """Right by a margin uniform in [0, 1] that falls by `harm`: the true drop is `harm`.

    Nominal is 95 % one-sided where no change is seen; 91 % is 2.6 standard errors below.
    """
    random = np.random.default_rng(5)
    labels = np.zeros(300, np.int64)
    held = 0
    for _ in range(TRIALS):
        margins = random.random(300)
        before = np.stack([margins, np.zeros(300)], 1)
        drop = compare_metric(
            METRICS["accuracy"], {"s": before}, {"s": before - [harm, 0.0]}, labels, resamples=100
        ).drop
        held += drop.high >= harm
    assert held / TRIALS >= 0.91


def _both_ways(random: np.random.Generator) -> Case:
    """Class 1 of 2 in 300 rows, 10 % lost and 7 % won: the true drop is 3 %."""
    kind = random.random(300)
    before = np.where((kind < 0.07) | (kind > 0.95), -1.0, 1.0)
    after = np.where(((kind >= 0.07) & (kind < 0.17)) | (kind > 0.95), -1.0, 1.0)
    return {"s": before}, {"s": after}, np.ones(300, np.int64)


def _noisier(random: np.random.Generator) -> Case:
    """Errors of standard deviation 1 and 1.1: the true drop of RMSE is 0.1."""
    labels = random.normal(size=300)
    first, own = random.normal(size=(2, 300))
    second = 1.1 * (0.8 * first + 0.6 * own)
    return {"s": labels + first}, {"s": labels + second}, labels


@pytest.mark.parametrize(
    ("name", "draw", "truth"), [("accuracy", _both_ways, 0.03), ("rmse", _noisier, 0.1)]
)
def test_compare_metric__many_trials__interval_covers_the_truth(
    name: str, draw: object, truth: float
) -> None:
    assert callable(draw)
    random = np.random.default_rng(11)
    drops = [
        compare_metric(METRICS[name], *draw(random), resamples=200).drop for _ in range(TRIALS)
    ]
    covered = np.mean([drop.low <= truth <= drop.high for drop in drops])
    assert 0.91 <= covered <= 0.99
