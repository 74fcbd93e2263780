"""Metrics of numbers and rankings: rmse, mae, r2, ndcg and map, with scikit-learn's definitions.

The first output is read as [rows, k], the labels have the same form. For a ranking each row is a
query: the output scores its k candidates, and the labels are their relevance.
"""

from __future__ import annotations

import math

import numpy as np

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.data import Tensors
from mlctl.optimize.metrics.bootstrap import Statistic, weighted_mean


def rmse(outputs: Tensors, labels: np.ndarray, reference: Tensors) -> Statistic:
    """Return the root of the mean over rows of the squared error, a mean over a row's values."""
    del reference
    found, expected = _pair(outputs, labels)
    mean = weighted_mean(np.mean((found - expected) ** 2, axis=1))
    return lambda weights: math.sqrt(mean(weights))


def mae(outputs: Tensors, labels: np.ndarray, reference: Tensors) -> Statistic:
    """Return the mean of the absolute error."""
    del reference
    found, expected = _pair(outputs, labels)
    return weighted_mean(np.mean(np.abs(found - expected), axis=1))


def r2(outputs: Tensors, labels: np.ndarray, reference: Tensors) -> Statistic:
    """Return the explained share of the labels' variance, the mean over a row's values."""
    del reference
    found, expected = _pair(outputs, labels)
    squared = (found - expected) ** 2

    def weighted(weights: np.ndarray) -> float:
        spread = weights @ (expected - weights @ expected / weights.sum()) ** 2
        missed = np.divide(weights @ squared, spread, out=np.zeros_like(spread), where=spread > 0)
        return float(np.mean(1.0 - missed))

    return weighted


def ndcg(outputs: Tensors, labels: np.ndarray, reference: Tensors) -> Statistic:
    """Return the mean over rows of the discounted gain, as a share of that of the best order."""
    del reference
    ranked, best = _ranked(outputs, labels)
    discount = 1.0 / np.log2(np.arange(ranked.shape[1]) + 2.0)
    ideal = best @ discount
    return weighted_mean(np.divide(ranked @ discount, ideal, out=ideal * 0, where=ideal > 0))


def average_precision(outputs: Tensors, labels: np.ndarray, reference: Tensors) -> Statistic:
    """Return the mean over rows of the precision at each candidate with a relevance above 0."""
    del reference
    relevant = _ranked(outputs, labels)[0] > 0
    precision = relevant.cumsum(axis=1) / np.arange(1, relevant.shape[1] + 1)
    count = relevant.sum(axis=1)
    return weighted_mean((precision * relevant).sum(axis=1) / np.maximum(count, 1))


def _pair(outputs: Tensors, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first output and the labels, float64 [rows, k]; INVALID_INPUT if k differs."""
    name, found = next(iter(outputs.items()))
    rows = len(labels)
    found, expected = (array.astype(np.float64).reshape(rows, -1) for array in (found, labels))
    if found.shape != expected.shape:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"output {name!r} has {found.shape[1]} values for each row, "
            f"the labels have {expected.shape[1]}",
            "Save labels of shape [rows, k] for an output of shape [rows, k].",
        )
    return found, expected


def _ranked(outputs: Tensors, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the relevance in the order of the scores, and in the best order, [rows, k]."""
    scores, relevance = _pair(outputs, labels)
    if relevance.shape[1] < 2 or (relevance < 0).any():
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            "a ranking needs labels of shape [rows, candidates], 0 or more for each candidate",
            "Give one row for each query, with the scores of all its candidates as output.",
        )
    order = np.argsort(-scores, axis=1, kind="stable")
    return np.take_along_axis(relevance, order, axis=1), -np.sort(-relevance, axis=1)
