"""Language models side by side: the source in transformers, a variant as it will be served.

Both take token ids, so that a difference is one of the models and never of two tokenizers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mlctl.core.quiet import quiet
from mlctl.optimize.inputs.loading import loading
from mlctl.optimize.recipes.generation import read_generation
from mlctl.optimize.recipes.int4_checkpoint import model_folder
from mlctl.registry.catalog import SourceModel
from mlctl.services.generate.decoder import Decoder

Ids = Sequence[int]


class LanguageModel(Protocol):
    """A causal language model in fp32, or what a variant makes of it."""

    def logits(self, ids: Ids) -> np.ndarray:
        """Return the scores [ids, vocabulary], fp32, of the token after each of `ids`."""
        ...

    def generate(self, ids: Ids, count: int) -> list[int]:
        """Return up to `count` tokens that follow `ids` with greedy decoding.

        The answer ends with an end token.
        """
        ...


class TransformersModel:
    """The registered model with its tokenizer, in fp32, from safetensors and without code."""

    def __init__(self, source: SourceModel) -> None:
        import torch
        import transformers

        safe: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        with (
            loading(source.uri),
            model_folder(source.model_path, dequantize=True) as folder,
        ):
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **safe)
            model: Any = transformers.AutoModelForCausalLM.from_pretrained(
                str(folder), use_safetensors=True, dtype=torch.float32, **safe
            )
            self._model = model.eval()
            self.context_length = int(model.config.max_position_embeddings)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, with the tokens that the tokenizer adds to each."""
        return list(self._tokenizer.encode(text))

    def decode(self, ids: Ids) -> str:
        """Return the text of `ids` without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def logits(self, ids: Ids) -> np.ndarray:
        import torch

        with torch.inference_mode():
            found: np.ndarray = self._model(torch.tensor([list(ids)])).logits[0].numpy()
        return found

    def generate(self, ids: Ids, count: int) -> list[int]:
        import torch

        with torch.inference_mode(), quiet():
            found = self._model.generate(
                torch.tensor([list(ids)]),
                max_new_tokens=count,
                do_sample=False,
                num_beams=1,
                repetition_penalty=1.0,
            )
        return [int(token) for token in found[0, len(ids) :]]


class DecoderModel:
    """A variant in the decoder that serves it, with one sequence at a time on one thread."""

    def __init__(self, folder: Path, max_tokens: int) -> None:
        """Load the folder; texts, and prompts with their answers, have at most `max_tokens`."""
        generation = read_generation(folder)
        self._ends = frozenset(generation.eos_ids)
        self._decoder = Decoder(folder, 1, min(max_tokens, generation.context_length))

    def logits(self, ids: Ids) -> np.ndarray:
        return self._decoder.score(ids)

    def generate(self, ids: Ids, count: int, *, past_end: bool = False) -> list[int]:
        """Return the greedy answer; with `past_end`, for timing, it has `count` tokens."""
        found: list[int] = []
        scores = self._decoder.prefill(0, ids, 0)
        while len(found) < count:
            if found:
                scores = self._decoder.decode(0, found[-1:], [len(ids) + len(found) - 1])[0]
            found.append(int(scores.argmax()))
            if found[-1] in self._ends and not past_end:
                break
        return found
