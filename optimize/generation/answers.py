"""What a language model says about texts: losses, next-token scores, greedy continuations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mlctl.optimize.generation.models import Ids, LanguageModel
from mlctl.optimize.metrics.parity import Parity, compare, finite
from mlctl.optimize.metrics.perplexity import PERPLEXITY
from mlctl.optimize.metrics.scores import MetricResult, compare_metric
from mlctl.services.generate.options import NO_TOKEN

OUTPUT = "logits"
ANSWER_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Questions:
    """The token ids of the `texts` that are judged, and of the `prompts` that are continued."""

    texts: tuple[tuple[int, ...], ...]
    prompts: tuple[tuple[int, ...], ...]

    @property
    def predicted(self) -> np.ndarray:
        """The tokens of each text that are predicted [texts]: all but the first."""
        return np.array([len(ids) - 1 for ids in self.texts])


@dataclass(frozen=True, slots=True)
class Answers:
    """`losses` [texts] in nats, the scores `first` [prompts, vocabulary] of the first token, and
    `continuations` [prompts, ANSWER_TOKENS] of token ids, filled up with -1."""

    losses: np.ndarray
    first: np.ndarray
    continuations: np.ndarray


def ask(model: LanguageModel, questions: Questions) -> Answers:
    """Return the model's answers; ValueError if a score is NaN or infinite."""
    continuations = np.full((len(questions.prompts), ANSWER_TOKENS), NO_TOKEN)
    for row, prompt in zip(continuations, questions.prompts, strict=True):
        found = model.generate(prompt, ANSWER_TOKENS)
        row[: len(found)] = found
    losses = np.array([_loss(model.logits(ids), ids) for ids in questions.texts])
    first = np.stack([model.logits(ids)[-1] for ids in questions.prompts])
    if not finite({OUTPUT: first, "loss": losses}):
        raise ValueError("its scores are NaN or infinite")
    return Answers(losses, first, continuations)


def compare_answers(
    reference: Answers, found: Answers, predicted: np.ndarray
) -> tuple[Parity, MetricResult]:
    """Return the distance of the first tokens' scores, and the increase of perplexity.

    The agreement is the share of the reference's greedy tokens before the first that differs.
    """
    distances = compare({OUTPUT: reference.first}, {OUTPUT: found.first}).outputs[OUTPUT]
    agreement = _agreement(reference.continuations, found.continuations)
    score = compare_metric(
        PERPLEXITY, {OUTPUT: reference.losses}, {OUTPUT: found.losses}, predicted
    )
    return Parity({OUTPUT: replace(distances, agreement=agreement)}), score


def save_answers(path: Path, questions: Questions, answers: Answers) -> None:
    """Write the questions with the source model's answers."""
    with path.open("wb") as file:
        np.savez(
            file,
            allow_pickle=False,
            losses=answers.losses,
            first=answers.first,
            continuations=answers.continuations,
            **_flat("texts", questions.texts),
            **_flat("prompts", questions.prompts),
        )


def load_answers(path: Path) -> tuple[Questions, Answers]:
    """Read what `save_answers` wrote."""
    with np.load(path, allow_pickle=False) as found:
        stored = dict(found)
    questions = Questions(_nested(stored, "texts"), _nested(stored, "prompts"))
    return questions, Answers(stored["losses"], stored["first"], stored["continuations"])


def without_filling(continuation: Iterable[int]) -> list[int]:
    """Return the token ids of one row of `Answers.continuations`."""
    return [int(token) for token in continuation if token != NO_TOKEN]


def _loss(logits: np.ndarray, ids: Ids) -> float:
    """Return the negative log-likelihood, in nats, of all `ids` but the first."""
    scores = logits[:-1].astype(np.float64)
    top = scores.max(axis=1, keepdims=True)
    total = np.log(np.exp(scores - top).sum(axis=1)) + top[:, 0]
    return float((total - scores[np.arange(len(scores)), list(ids[1:])]).sum())


def _agreement(reference: np.ndarray, found: np.ndarray) -> float:
    expected = reference != NO_TOKEN
    before_difference = np.logical_and.accumulate(reference == found, axis=1)
    return float((before_difference & expected).sum() / expected.sum())


def _flat(name: str, rows: Sequence[Ids]) -> dict[str, np.ndarray]:
    lengths = np.array([len(row) for row in rows])
    return {name: np.concatenate([np.array(row) for row in rows]), f"{name}_lengths": lengths}


def _nested(stored: dict[str, np.ndarray], name: str) -> tuple[tuple[int, ...], ...]:
    ends = np.cumsum(stored[f"{name}_lengths"])[:-1]
    return tuple(tuple(map(int, row)) for row in np.split(stored[name], ends))
