"""LightGBM's Booster behind scikit-learn's interface."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin


class BoosterClassifier(ClassifierMixin, BaseEstimator):
    """A Booster with a binary or multiclass objective; its classes are numbers from 0."""

    def __init__(self, booster: Any) -> None:
        self.booster = booster
        self.classes_ = np.arange(max(2, booster.num_model_per_iteration()))

    def predict_proba(self, rows: Any) -> np.ndarray:
        """Return the probabilities [rows, classes]."""
        found = np.asarray(self.booster.predict(np.asarray(rows, np.float64), num_threads=1))
        return np.stack([1.0 - found, found], axis=1) if found.ndim == 1 else found

    def predict(self, rows: Any) -> np.ndarray:
        """Return the most probable class [rows]."""
        found: np.ndarray = self.classes_[self.predict_proba(rows).argmax(axis=1)]
        return found


class BoosterRegressor(RegressorMixin, BaseEstimator):
    """A Booster with any other objective."""

    def __init__(self, booster: Any) -> None:
        self.booster = booster

    def predict(self, rows: Any) -> np.ndarray:
        """Return the predictions [rows]."""
        return np.asarray(self.booster.predict(np.asarray(rows, np.float64), num_threads=1))
