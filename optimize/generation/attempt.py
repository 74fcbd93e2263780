"""Judge and time the variants of a language model in the decoder that will serve them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bundle.manifest import MODEL_NAME
from optimize.attempt import Attempt
from optimize.data import Rows, Tensors, row_count
from optimize.generation.answers import ANSWER_TOKENS, ask, compare_answers
from optimize.generation.models import Ids, ServedModel
from optimize.generation.source import MAX_TOKENS, SourceAnswers, read_golden
from optimize.judge import model_size
from optimize.metrics.latency import measure_interleaved
from optimize.variant import Measured, Timings, Variant, load_details


@dataclass(slots=True)
class _Timed:
    """A model as a session whose rows are the tokens of an answer to `prompt`."""

    provider: str
    model: ServedModel
    prompt: Ids

    def run(self, inputs: Tensors) -> dict[str, np.ndarray]:
        tokens = self.model.generate(self.prompt, row_count(inputs), past_end=True)
        return {"tokens": np.array(tokens)}


@dataclass(frozen=True, slots=True)
class GenerationAttempt(Attempt):
    """The inputs that all variants of one language model share."""

    exported: SourceAnswers

    def _measured(self, root: Path) -> Measured:
        import onnx

        source = self.exported
        self._check_tokenizer(root)
        found = ask(ServedModel(root, MAX_TOKENS), source.questions)
        parity, score = compare_answers(source.answers, found, source.questions.predicted)
        graph = onnx.load(str(root / MODEL_NAME), load_external_data=False)
        return Measured(
            rows=len(source.questions.texts),
            opset=next(each.version for each in graph.opset_import if not each.domain),
            size_bytes=model_size(root),
            parity=parity,
            score=score,
            details=load_details(root),
            prompt_tokens=len(self._longest()),
        )

    def _time(self, variants: Sequence[Variant]) -> Timings:
        """Time an answer and its first token, all variants in turn."""
        sessions = {
            variant.recipe: _Timed("cpu", ServedModel(variant.model, MAX_TOKENS), self._longest())
            for variant in variants
            if variant.measured is not None and variant.model is not None
        }
        sizes = dict.fromkeys(sessions, (1, ANSWER_TOKENS))
        rows = Rows({"token": np.arange(ANSWER_TOKENS)}, None)
        found = measure_interleaved(sessions, sizes, rows, self.clock)
        # The first is what variants are chosen by.
        return Timings({name: latencies[::-1] for name, latencies in found.items()})

    def _longest(self) -> Ids:
        return max(self.exported.questions.prompts, key=len)

    def _check_tokenizer(self, root: Path) -> None:
        """Raise ValueError unless the variant's tokenizer gives the source's ids."""
        import tokenizers

        tokenizer = tokenizers.Tokenizer.from_file(str(root / "tokenizer.json"))
        prompts = self.exported.questions.prompts
        for text, ids in zip(read_golden(self.exported), prompts, strict=True):
            if tuple(tokenizer.encode(text).ids) != ids:
                raise ValueError("its tokenizer does not give the token ids of the source's")
