"""A registered language model with its texts, and its own answers in fp32, which judge variants."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlctl.core.entries import hash_key
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.cache import fetch_or_build
from mlctl.optimize.data import Rows
from mlctl.optimize.generation.answers import (
    OUTPUT,
    Answers,
    Questions,
    ask,
    load_answers,
    save_answers,
    without_filling,
)
from mlctl.optimize.generation.models import TransformersModel
from mlctl.optimize.generation.templates import check_chat_template
from mlctl.optimize.generation.texts import INPUT, load_texts
from mlctl.optimize.inputs.batching import DEFAULT
from mlctl.optimize.inputs.prepare import OptimizeOptions, Prepared
from mlctl.optimize.metrics.perplexity import PERPLEXITY
from mlctl.optimize.proofs.baseline import Baseline
from mlctl.optimize.proofs.probing import ProbeResult
from mlctl.optimize.proofs.source_graph import ExportedModel, export_key
from mlctl.registry.catalog import SourceModel
from mlctl.registry.hugging_face import tokenizer_folder
from mlctl.services.generate.options import PROMPT, TEXT, TOKENS
from mlctl.services.model.golden import load_golden, save_golden

# Of a text, as of a prompt with its answer; longer texts would need more memory for their scores.
MAX_TOKENS = 256
_MAX_PROMPTS = 16
_MAX_PROMPT_TOKENS = 64

_REPLACEMENT = "\ufffd"
_ANSWERS_NAME = "answers.npz"
_GOLDEN_NAME = "golden.npz"


@dataclass(frozen=True, slots=True)
class SourceAnswers(ExportedModel):
    """The source with its `answers` to `questions`; `graph` is its folder, `golden` the prompts.

    `golden` is a file of golden rows: prompts, and what the source continues them with, as text
    and as token ids.
    """

    questions: Questions
    answers: Answers
    golden: Path


def prepare_language_model(
    source: SourceModel, data: str | Path, options: OptimizeOptions
) -> Prepared:
    """Read the texts; INVALID_INPUT for options that have no meaning for a language model."""
    wrong = {
        "--transform": options.transform is not None,
        "--metric": options.metric is not None,
        "--batching": options.batching_options != DEFAULT,
    }
    if named := [name for name, given in wrong.items() if given]:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{source.uri} is a language model, which has no {' and no '.join(named)}",
            "It is judged by perplexity on the texts, and the engine forms its own batches.",
        )
    raw = load_texts(data, options.sampling, options.columns)
    return Prepared(source, raw, raw.calibration, raw.held_out, None, PERPLEXITY)


def run_source(prepared: Prepared) -> SourceAnswers:
    """Run the source model on the texts, or take its answers from the cache.

    UNSUPPORTED_MODEL if it cannot be loaded, or answers with NaN.
    """
    key = export_key(prepared)
    entry = fetch_or_build(key, lambda directory: _build(directory, prepared))
    questions, answers = load_answers(entry.root / _ANSWERS_NAME)
    rows = Rows(prepared.held_out.inputs, questions.predicted)
    return SourceAnswers(
        prepared=prepared,
        graph=prepared.source.model_path,
        opset=0,
        baseline=Baseline(rows, {OUTPUT: answers.losses}, row_independent=True, metric=PERPLEXITY),
        splits=None,
        probes=ProbeResult(),
        key=hash_key(key),
        reused=entry.reused,
        questions=questions,
        answers=answers,
        golden=entry.root / _GOLDEN_NAME,
    )


def _build(directory: Path, prepared: Prepared) -> None:
    source = prepared.source
    check_chat_template(tokenizer_folder(source.model_path), source.uri)
    model = TransformersModel(source)
    if model.context_length < MAX_TOKENS:
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            f"{prepared.source.uri} has a context of {model.context_length} tokens "
            f"(minimum {MAX_TOKENS})",
        )
    texts = [text.decode() for text in prepared.held_out.inputs[INPUT]]
    ids = tuple(tuple(model.encode(text)[:MAX_TOKENS]) for text in texts)
    halves = [each[: min(len(each) // 2, _MAX_PROMPT_TOKENS)] for each in ids]
    # Half a character at the end is none.
    starts = [model.decode(half).rstrip(_REPLACEMENT) for half in halves]
    # Golden rows cannot end in NUL.
    prompts = {
        start: tuple(model.encode(start)) for start in starts if start.strip() and "\0" not in start
    }
    chosen = dict(list(prompts.items())[:_MAX_PROMPTS])
    if not chosen or min(map(len, ids)) < 2:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, "the data has texts of a single token", "Give longer texts."
        )
    questions = Questions(ids, tuple(chosen.values()))
    try:
        answers = ask(model, questions)
    except ValueError as error:
        raise MlctlError(ErrorCode.UNSUPPORTED_MODEL, f"{prepared.source.uri}: {error}") from error
    save_answers(directory / _ANSWERS_NAME, questions, answers)
    continued = [model.decode(without_filling(row)) for row in answers.continuations]
    prompt_texts, outputs = (
        np.array([text.rstrip("\0").encode() for text in side], dtype=object)
        for side in (chosen, continued)
    )
    save_golden(
        directory / _GOLDEN_NAME,
        {PROMPT: prompt_texts},
        # The text is for readers: an answer may end inside a character, which only tokens can say.
        {TEXT: outputs, TOKENS: answers.continuations},
    )


def read_golden(source: SourceAnswers) -> list[str]:
    """Return the prompts as texts."""
    inputs, _ = load_golden(source.golden)
    return [text.decode() for text in inputs["prompt"]]
