"""How a batch job continues its prompts, and the tensors of a language model."""

from __future__ import annotations

from dataclasses import dataclass

PROMPT, TEXT = "prompt", "text"
TOKENS = "tokens"
"""The golden rows' answers as token ids [prompts, tokens], filled up with `NO_TOKEN`."""
NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How a job continues its prompts; equal options give equal answers to equal prompts.

    Each answer has at most `max_tokens` tokens. Temperature 0 takes the most probable ones.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    seed: int = 0
