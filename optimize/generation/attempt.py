"""Judge and time the variants of a language model in the decoder that will serve them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlctl.bundle.manifest import MODEL_NAME
from mlctl.core.errors import MlctlError
from mlctl.optimize.cache import fetch_or_build
from mlctl.optimize.data import Rows, Tensors, row_count
from mlctl.optimize.generation.answers import ANSWER_TOKENS, OUTPUT, ask, compare_answers
from mlctl.optimize.generation.models import DecoderModel, Ids
from mlctl.optimize.generation.source import MAX_TOKENS, SourceAnswers, read_golden
from mlctl.optimize.generation.templates import check_chat_template
from mlctl.optimize.metrics.latency import measure_interleaved
from mlctl.optimize.metrics.parity import compare
from mlctl.optimize.recipes.base import Details, Recipe, Workbench
from mlctl.optimize.recipes.generation import GenerationRecipe
from mlctl.optimize.recipes.graphs import opset_of
from mlctl.optimize.variants.attempt import Attempt, build_files
from mlctl.optimize.variants.judge import model_size
from mlctl.optimize.variants.time_limit import Pace
from mlctl.optimize.variants.variant import Measured, Timings, Variant, load_details

# Between two runtimes in fp32; rounding gives 1e-6 to 1e-4.
_MAX_RELATIVE_L2 = 1e-3


@dataclass(slots=True)
class _Timed:
    """A model as a session whose rows are the tokens of an answer to `prompt`."""

    provider: str
    model: DecoderModel
    prompt: Ids

    def run(self, inputs: Tensors) -> dict[str, np.ndarray]:
        tokens = self.model.generate(self.prompt, row_count(inputs), past_end=True)
        return {"tokens": np.array(tokens)}


@dataclass(frozen=True)
class GenerationAttempt(Attempt):
    """The inputs that all variants of one language model share."""

    exported: SourceAnswers

    def pace(self) -> Pace:
        """Return no pace: how long an answer takes depends on its text."""
        return Pace(0.0, 0.0)

    def _run(self, recipe: Recipe, directory: Path, bench: Workbench) -> Details:
        return build_files(recipe, self.exported.graph, directory, bench)

    def _measured(self, root: Path) -> Measured:
        import onnx

        source = self.exported
        self._prove_builder()
        self._check_tokenizer(root)
        found = ask(DecoderModel(root, MAX_TOKENS), source.questions)
        parity, score = compare_answers(source.answers, found, source.questions.predicted)
        graph = onnx.load(str(root / MODEL_NAME), load_external_data=False)
        return Measured(
            rows=len(source.questions.texts),
            opset=opset_of(graph),
            size_bytes=model_size(root),
            parity=parity,
            score=score,
            details=load_details(root),
            prompt_tokens=len(self._longest()),
        )

    def _time(self, variants: Sequence[Variant]) -> Timings:
        """Time an answer and its first token, all variants in turn."""
        sessions: dict[str, _Timed] = {}
        for variant in variants:
            if variant.measured is not None and variant.model is not None:
                self._report_timing(variant.recipe)
                model = DecoderModel(variant.model, MAX_TOKENS)
                sessions[variant.recipe] = _Timed("cpu", model, self._longest())
        self._report_timing(None)
        sizes = dict.fromkeys(sessions, (1, ANSWER_TOKENS))
        rows = Rows({"token": np.arange(ANSWER_TOKENS)}, None)
        found = measure_interleaved(sessions, sizes, rows, self.clock, self.goals.min_gain)
        # The first is what variants are chosen by.
        return Timings({name: latencies[::-1] for name, latencies in found.items()})

    def _prove_builder(self) -> None:
        """Raise ValueError unless the fp32 graph, which all variants start from, is the source's.

        The builder writes graphs from its own description of each architecture, and can be wrong.
        """
        recipe = GenerationRecipe("fp32")
        entry = fetch_or_build(
            self.model_key(recipe), lambda directory: self._build(recipe, directory)
        )
        model, source = DecoderModel(entry.root, MAX_TOKENS), self.exported
        first = np.stack([model.logits(ids)[-1] for ids in source.questions.prompts])
        error = compare({OUTPUT: source.answers.first}, {OUTPUT: first}).relative_l2
        if error > _MAX_RELATIVE_L2:
            raise ValueError(
                f"the builder's graph is not the source model: relative L2 {error:.2g} in fp32 "
                f"(limit {_MAX_RELATIVE_L2:g})"
            )

    def _longest(self) -> Ids:
        return max(self.exported.questions.prompts, key=len)

    def _check_tokenizer(self, root: Path) -> None:
        """Raise ValueError unless the variant's tokenizer and template are the source's."""
        import tokenizers

        try:
            check_chat_template(root, self.exported.prepared.source.uri)
        except MlctlError as error:
            raise ValueError(error.message) from error
        tokenizer = tokenizers.Tokenizer.from_file(str(root / "tokenizer.json"))
        prompts = self.exported.questions.prompts
        for text, ids in zip(read_golden(self.exported), prompts, strict=True):
            if tuple(tokenizer.encode(text).ids) != ids:
                raise ValueError("its tokenizer does not give the token ids of the source's")
