"""Prompts to answers for batch jobs: a language model with the interface of a scorer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.generate.engine import GenerationRequest, complete
from mlctl.services.generate.loading import open_engine
from mlctl.services.generate.options import PROMPT, TEXT, AnswerOptions
from mlctl.services.generate.sampling import TokenSampling
from mlctl.services.generate.text import read_prompts
from mlctl.services.model.settings import RuntimeSettings


class TextScorer:
    """Answers prompts in the order of their rows. For one thread at a time."""

    joinable = True
    thread_safe = False
    provider = "cpu"

    def __init__(
        self, bundle: VerifiedBundle, settings: RuntimeSettings, options: AnswerOptions
    ) -> None:
        """Load the model of a bundle with `generation`; raises as `open_engine` does."""
        self.digest = bundle.digest
        self.name = bundle.name
        self.signature = bundle.signature
        self._batch = open_engine(bundle, settings)
        self._options = options

    def check(self, inputs: Mapping[str, np.ndarray]) -> int:
        """Return the number of prompts; INVALID_INPUT for an empty, too long or undecodable one."""
        requests = self._requests(inputs)
        for request in requests:
            try:
                self._batch.check(request)
            except MlctlError as error:
                raise MlctlError(ErrorCode.INVALID_INPUT, error.message) from error
        return len(requests)

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the texts that follow checked prompts."""
        answers = complete(self._batch, self._requests(inputs))
        return {TEXT: np.array([answer.text.encode() for answer in answers], dtype=object)}

    def _requests(self, inputs: Mapping[str, np.ndarray]) -> list[GenerationRequest]:
        options = self._options
        prompts = read_prompts(inputs[PROMPT])
        return [
            GenerationRequest(
                tokens,
                options.max_tokens,
                TokenSampling(options.temperature, seed=_seed(options.seed, prompt)),
            )
            for prompt, tokens in zip(prompts, self._batch.codec.encode_all(prompts), strict=True)
        ]


def _seed(seed: int, prompt: str) -> int:
    """Return a prompt's own seed: equal prompts repeat their answer wherever they stand."""
    digest = hashlib.sha256(f"{seed} {prompt}".encode()).digest()
    return int.from_bytes(digest[:8])
