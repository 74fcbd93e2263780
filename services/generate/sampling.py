"""Choose the next token of a sequence from the model's logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

# Nucleus sampling looks at so many tokens first: sorting a whole vocabulary takes milliseconds.
_NUCLEUS = 1024


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn.

    Temperature 0 takes the most probable token. `top_k` 0 is no limit. Equal seeds draw equal
    tokens from equal logits; None draws anew each time.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None


class TokenLogprobs(NamedTuple):
    """The natural logarithm of the chosen token's probability, and of the most probable tokens'."""

    chosen: float
    top: tuple[tuple[int, float], ...]


class Sampler:
    """Draws the tokens of one sequence."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def pick(self, logits: np.ndarray) -> int:
        """Return a token, given its `logits` (float32 [vocabulary]); -inf excludes a token."""
        sampling = self._sampling
        if sampling.temperature == 0 or sampling.top_k == 1:
            return int(logits.argmax())
        tokens = np.arange(len(logits))
        if 0 < sampling.top_k < len(logits):
            tokens = np.argpartition(logits, -sampling.top_k)[-sampling.top_k :]
        scaled = logits[tokens] / sampling.temperature
        weights = np.exp((scaled - scaled.max()).astype(np.float64))
        weights /= weights.sum()
        if sampling.top_p < 1:
            kept = _nucleus(weights, sampling.top_p)
            tokens, weights = tokens[kept], weights[kept]
        bounds = np.cumsum(weights)
        drawn = self._random.random() * bounds[-1]
        return int(tokens[min(np.searchsorted(bounds, drawn, side="right"), len(tokens) - 1)])


def _nucleus(weights: np.ndarray, share: float) -> np.ndarray:
    """Return the indices of the fewest weights, largest first, whose sum reaches `share`."""
    candidates = np.arange(len(weights))
    if len(weights) > _NUCLEUS:
        largest = np.argpartition(weights, -_NUCLEUS)[-_NUCLEUS:]
        if weights[largest].sum() >= share:
            candidates = largest
    order = candidates[np.argsort(-weights[candidates], kind="stable")]
    return order[: int(np.searchsorted(np.cumsum(weights[order]), share)) + 1]


def token_logprobs(logits: np.ndarray, token: int, top: int) -> TokenLogprobs:
    """Return the log-probabilities of `token` and of the `top` most probable tokens."""
    shifted = (logits - logits.max()).astype(np.float64)
    logprobs = shifted - np.log(np.exp(shifted).sum())
    best = np.argsort(-logprobs, kind="stable")[:top]
    return TokenLogprobs(
        float(logprobs[token]), tuple((int(each), float(logprobs[each])) for each in best)
    )
