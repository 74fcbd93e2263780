"""Perplexity: how surprised a language model is by text, per token. Lower is better."""

from __future__ import annotations

import math

import numpy as np

from mlctl.optimize.data import Tensors
from mlctl.optimize.metrics.bootstrap import Statistic
from mlctl.optimize.metrics.scores import LabelKind, Metric

PERPLEXITY_NAME = "perplexity"


def _perplexity(outputs: Tensors, labels: np.ndarray, reference: Tensors) -> Statistic:
    """Return exp(loss per token): the output is a text's loss in nats, the label its tokens."""
    del reference
    losses = next(iter(outputs.values()))
    return lambda weights: math.exp(float(losses @ weights) / float(labels @ weights))


# Every change of a loss changes it, so the bootstrap has no unseen effect to allow for.
PERPLEXITY = Metric(PERPLEXITY_NAME, False, LabelKind.ANY, _perplexity, lambda *_: 0.0)
