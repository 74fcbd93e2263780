"""Choose the next token of a sequence from the model's logits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

# Below this temperature the most probable token is certain as far as float32 can tell.
_GREEDY_TEMPERATURE = 1e-5
# A running sum over a large vocabulary takes a millisecond; over blocks and one block it does not.
_BLOCK = 512


@dataclass(frozen=True, slots=True)
class TokenSampling:
    """How tokens are drawn.

    Temperature 0 takes the most probable token. `top_k` 0 is no limit. Equal seeds draw equal
    tokens from equal logits; None draws anew each time.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None


GREEDY = TokenSampling(temperature=0)


class TokenLogprobs(NamedTuple):
    """The natural logarithm of the chosen token's probability, and of the most probable tokens'."""

    chosen: float
    top: tuple[tuple[int, float], ...]


class Sampler:
    """Draws the tokens of one sequence."""

    def __init__(self, sampling: TokenSampling) -> None:
        self._sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def pick(self, logits: np.ndarray) -> int:
        """Return a token, given its `logits` (float32 [vocabulary]); -inf excludes a token."""
        sampling = self._sampling
        if sampling.temperature < _GREEDY_TEMPERATURE or sampling.top_k == 1:
            return int(logits.argmax())
        tokens = None
        if 0 < sampling.top_k < len(logits):
            tokens = np.argpartition(logits, -sampling.top_k)[-sampling.top_k :]
            logits = logits[tokens]
        weights = np.exp((logits - logits.max()) / sampling.temperature)
        if sampling.top_p < 1:
            kept = _nucleus(weights, sampling.top_p)
            tokens = kept if tokens is None else tokens[kept]
            weights = weights[kept]
        drawn = _draw(weights, self._random.random())
        return drawn if tokens is None else int(tokens[drawn])


def _nucleus(weights: np.ndarray, share: float) -> np.ndarray:
    """Return the indices of the fewest weights, largest first, whose sum reaches `share` of all."""
    total = weights.sum(dtype=np.float64)
    # All weights below this limit together are less than what the nucleus leaves out.
    candidates = np.flatnonzero(weights >= total * (1 - share) / len(weights))
    order = candidates[np.argsort(-weights[candidates], kind="stable")]
    bounds = np.cumsum(weights[order], dtype=np.float64)
    return order[: int(np.searchsorted(bounds, share * total)) + 1]


def _draw(weights: np.ndarray, point: float) -> int:
    """Return the index, never of weight 0, at the share `point` (0 to 1) of the `weights` sum."""
    sums = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK))
    bounds = np.cumsum(sums, dtype=np.float64)
    position = point * bounds[-1]
    block = _find(bounds, position)
    start = block * _BLOCK
    inside = np.cumsum(weights[start : start + _BLOCK], dtype=np.float64)
    return start + _find(inside, position - (bounds[block] - sums[block]))


def _find(bounds: np.ndarray, position: float) -> int:
    """Return the first index whose bound exceeds `position`, which rounding may move outside."""
    inside = min(max(position, 0.0), np.nextafter(bounds[-1], 0))
    return int(np.searchsorted(bounds, inside, side="right"))


def token_logprobs(logits: np.ndarray, token: int, top: int) -> TokenLogprobs:
    """Return the log-probabilities of `token` and of the `top` most probable tokens."""
    highest = float(logits.max())
    total = highest + math.log(np.exp(logits - highest).sum(dtype=np.float64))
    top = min(top, len(logits))
    best = np.argpartition(logits, -top)[len(logits) - top :]
    best = best[np.argsort(-logits[best], kind="stable")]
    return TokenLogprobs(
        float(logits[token]) - total,
        tuple((int(each), float(logits[each]) - total) for each in best),
    )
