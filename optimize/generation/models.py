"""Language models side by side: the source in transformers, a variant in the engine that serves it.

Both take token ids, so that a difference is one of the models and never of two tokenizers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bundle.errors import ErrorCode, MlctlError
from registry.catalog import SourceModel
from registry.hugging_face import tokenizer_folder
from registry.names import printable
from registry.quiet import first_line, quiet
from services.runtime.genai import import_genai

Ids = Sequence[int]


class LanguageModel(Protocol):
    """A causal language model in fp32, or what a variant makes of it."""

    def logits(self, ids: Ids) -> np.ndarray:
        """Return the scores [ids, vocabulary], fp32, of the token after each of `ids`."""
        ...

    def generate(self, ids: Ids, count: int, *, past_end: bool = False) -> list[int]:
        """Return up to `count` tokens that follow `ids` with greedy decoding.

        The answer ends with the end token, unless `past_end`.
        """
        ...


class TransformersModel:
    """The registered model with its tokenizer, in fp32, from safetensors and without code."""

    def __init__(self, source: SourceModel) -> None:
        import transformers

        safe: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        try:
            with quiet():
                self._tokenizer = transformers.AutoTokenizer.from_pretrained(
                    str(tokenizer_folder(source.model_path)), **safe
                )
                model = transformers.AutoModelForCausalLM.from_pretrained(
                    str(source.model_path), use_safetensors=True, **safe
                )
                self._model: Any = model.float().eval()
        except Exception as error:  # a foreign folder, and its readers have no common exception
            raise MlctlError(
                ErrorCode.UNSUPPORTED_MODEL,
                f"{source.uri} cannot be loaded: {printable(first_line(error))}",
            ) from error

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

    def generate(self, ids: Ids, count: int, *, past_end: bool = False) -> list[int]:
        import torch

        least = {"min_new_tokens": count} if past_end else {}
        with torch.inference_mode(), quiet():
            found = self._model.generate(
                torch.tensor([list(ids)]),
                max_new_tokens=count,
                do_sample=False,
                num_beams=1,
                repetition_penalty=1.0,
                **least,
            )
        return [int(token) for token in found[0, len(ids) :]]


class EngineModel:
    """A variant: a folder for onnxruntime-genai, loaded."""

    def __init__(self, folder: Path) -> None:
        self._genai = import_genai()
        self._model = self._genai.Model(str(folder))

    def logits(self, ids: Ids) -> np.ndarray:
        generator = self._start(ids, 1)
        found: np.ndarray = generator.get_output("logits")[0].astype(np.float32)
        return found

    def generate(self, ids: Ids, count: int, *, past_end: bool = False) -> list[int]:
        generator = self._start(ids, count, min_length=len(ids) + count if past_end else 0)
        found = []
        while len(found) < count and not generator.is_done():
            generator.generate_next_token()
            found.append(int(generator.get_next_tokens()[0]))
        return found

    def _start(self, ids: Ids, count: int, min_length: int = 0) -> Any:
        """Return a generator that has read `ids` and may make `count` tokens."""
        options = self._genai.GeneratorParams(self._model)
        options.set_search_options(
            do_sample=False,
            num_beams=1,
            repetition_penalty=1.0,
            max_length=len(ids) + count,
            min_length=min_length,
        )
        generator = self._genai.Generator(self._model, options)
        generator.append_tokens(np.array(ids, dtype=np.int32))
        return generator
