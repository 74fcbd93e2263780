"""Metrics of class predictions: accuracy, top5, F1, AUC and log loss.

The first output is read as scores [rows, classes]; the class with the highest score is the
answer (the first of equal ones). An output [rows] or [rows, 1] is the score of class
1 against class 0, with its threshold at 0.5 if all scores of the reference lie in [0, 1]
(probabilities) and at 0 otherwise (logits).
"""

from __future__ import annotations

import numpy as np

from mlctl.bundle.output_kinds import same_top_class
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.data import Tensors
from mlctl.optimize.metrics.bootstrap import Statistic, weighted_mean

_TOP = 5
# Probabilities sum to 1 within what float16 arithmetic leaves of it.
_SUM = 1e-3
_OWN_HINT = "Give --metric module:function for such an output, or leave the labels out."


def accuracy(outputs: Tensors, labels: np.ndarray, reference: Tensors) -> Statistic:
    """The share of rows whose answer is their label."""
    scores = _scores(outputs, reference)
    return weighted_mean(_answers(scores, reference) == _classes(labels, scores))


def top5(outputs: Tensors, labels: np.ndarray, reference: Tensors) -> Statistic:
    """The share of rows whose label has one of the five highest scores."""
    scores = _scores(outputs, reference)
    if scores.shape[1] <= _TOP:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"metric top5 needs more than {_TOP} classes, the model has {scores.shape[1]}",
            "Give --metric accuracy.",
        )
    labels = _classes(labels, scores)
    own = scores[np.arange(len(labels)), labels][:, None]
    before = np.arange(scores.shape[1]) < labels[:, None]
    ahead = (scores > own) | ((scores == own) & before)
    return weighted_mean(ahead.sum(axis=1) < _TOP)


def f1(outputs: Tensors, labels: np.ndarray, reference: Tensors) -> Statistic:
    """The mean over classes of F1 = 2 tp / (predicted + labelled).

    Classes that neither occur nor are predicted in the weighted rows do not count.
    """
    scores = _scores(outputs, reference)
    labels, answers = _classes(labels, scores), _answers(scores, reference)
    hits, classes = answers == labels, scores.shape[1]

    def weighted(weights: np.ndarray) -> float:
        true = np.bincount(labels[hits], weights[hits], classes)
        either = np.bincount(labels, weights, classes) + np.bincount(answers, weights, classes)
        seen = either > 0
        return float(np.mean(2 * true[seen] / either[seen]))

    return weighted


def auc(outputs: Tensors, labels: np.ndarray, reference: Tensors) -> Statistic:
    """The area under the ROC curve: of class 1 if there are two, else the mean of each class."""
    shares = _probabilities(outputs, reference)
    labels = _classes(labels, shares)
    classes = range(shares.shape[1]) if shares.shape[1] > 2 else (1,)
    # Equal shares are one group: half of its pairs count as right.
    groups = [np.unique(shares[:, each], return_inverse=True)[1] for each in classes]

    def weighted(weights: np.ndarray) -> float:
        areas = []
        for each, group in zip(classes, groups, strict=True):
            own = np.bincount(group, weights * (labels == each))
            others = np.bincount(group, weights * (labels != each))
            pairs = own.sum() * others.sum()
            if pairs:
                areas.append(own @ (others.cumsum() - others / 2) / pairs)
        return float(np.mean(areas)) if areas else 0.5

    return weighted


def log_loss(outputs: Tensors, labels: np.ndarray, reference: Tensors) -> Statistic:
    """The mean of -log(probability of the label), in nats."""
    shares = _probabilities(outputs, reference)
    own = shares[np.arange(len(labels)), _classes(labels, shares)]
    return weighted_mean(-np.log(np.maximum(own, np.finfo(np.float32).eps)))


def top1_margin_used(reference: Tensors, outputs: Tensors) -> float:
    """`margin_used` for decisions by the highest score."""
    return _margin_used(reference, outputs, 1)


def top5_margin_used(reference: Tensors, outputs: Tensors) -> float:
    """`margin_used` for membership in the five highest scores."""
    return _margin_used(reference, outputs, _TOP)


def _margin_used(reference: Tensors, outputs: Tensors, top: int) -> float:
    """Return the largest share of a row's decision margin that the change of its scores used.

    The margin is the gap between the last score inside the top and the first outside, in
    the output where it is smaller; the change is the largest move of one score against
    another. 0 if no score moved, 1 if a decision changed or could have.
    """
    before, after = _scores(reference, reference), _scores(outputs, reference)
    moved = np.ptp(after - before, axis=1)
    margin = np.minimum(_margins(before, top), _margins(after, top))
    used = np.divide(moved, margin, out=np.ones_like(moved), where=margin > moved)
    return float(np.max(np.where(moved == 0, 0.0, used)))


def _margins(scores: np.ndarray, top: int) -> np.ndarray:
    inside = scores.shape[1] - top
    ordered = np.partition(scores, (inside - 1, inside), axis=1)
    return np.asarray(ordered[:, inside] - ordered[:, inside - 1])


def _scores(outputs: Tensors, reference: Tensors) -> np.ndarray:
    """Return the first output as float64 [rows, classes >= 2]; INVALID_INPUT if it cannot be."""
    name, array = next(iter(outputs.items()))
    if not np.issubdtype(array.dtype, np.floating) or array.ndim not in (1, 2):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"labels were given, but output {name!r} ({array.dtype} of shape "
            f"{list(array.shape)}) does not hold one score for each class",
            _OWN_HINT,
        )
    if array.ndim == 2 and array.shape[1] >= 2:
        return array.astype(np.float64)
    score, like = array.reshape(-1).astype(np.float64), reference[name]
    probabilities = bool(np.all((like >= 0) & (like <= 1)))
    threshold = 0.5 if probabilities else 0.0
    return np.stack([np.full_like(score, threshold), score], axis=1)


def _probabilities(outputs: Tensors, reference: Tensors) -> np.ndarray:
    """Return the scores as shares [rows, classes]; `reference` decides whether they are logits."""
    scores, like = _scores(outputs, reference), _scores(reference, reference)
    if next(iter(outputs.values())).size == len(scores):  # the first column is the threshold
        score = scores[:, 1]
        one = np.clip(score, 0, 1) if like[0, 0] else np.exp(-np.logaddexp(0, -score))
        return np.stack([1 - one, one], axis=1)
    if (like >= 0).all() and np.allclose(like.sum(axis=1), 1, rtol=0, atol=_SUM):
        return np.asarray(np.clip(scores, 0, 1))
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def _answers(scores: np.ndarray, reference: Tensors) -> np.ndarray:
    """Return the class of each row, [rows]: that of the reference where it has a tie."""
    before = _scores(reference, reference)
    same = same_top_class(before, scores)
    return np.asarray(np.where(same, before.argmax(axis=1), scores.argmax(axis=1)))


def _classes(labels: np.ndarray, scores: np.ndarray) -> np.ndarray:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= scores.shape[1]:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"labels range from {low} to {high}, but the model has {scores.shape[1]} classes",
            "Labels are class numbers, from 0.",
        )
    return labels
