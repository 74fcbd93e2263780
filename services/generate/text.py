"""Text to tokens and back: the tokenizer, the chat template, stop strings, structured output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import (
    allocate_token_bitmask,
    apply_token_bitmask_inplace,
    fill_next_token_bitmask,
)
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from mlctl.bundle.manifest import Generation
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.generate.chat_template import ChatTemplate, Messages, read_chat_template
from mlctl.services.generate.grammars import Grammar, GrammarProcess, compile_grammar

# Up to here the library's function for one text, beyond it the one that other threads run beside.
_SHORT_CHARS = 4096


class ContextLengthError(MlctlError):
    """PAYLOAD_TOO_LARGE: a prompt is too long for the model, alone or with its answer."""

    def __init__(self, max_tokens: int, found: str) -> None:
        super().__init__(
            ErrorCode.PAYLOAD_TOO_LARGE,
            f"this model's maximum context length is {max_tokens} tokens, and {found}",
            "Send a shorter prompt, or lower max_tokens.",
        )


def read_prompts(prompts: np.ndarray) -> list[str]:
    """Return BYTES `prompts` [rows] as texts; INVALID_INPUT for one that is not UTF-8."""
    try:
        return [prompt.decode() for prompt in prompts]
    except UnicodeDecodeError as error:
        raise MlctlError(ErrorCode.INVALID_INPUT, "a prompt is not UTF-8") from error


class TextCodec:
    """The tokenizer of a model's folder, with its chat template. Safe on any thread."""

    def __init__(self, folder: Path, generation: Generation) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._generation = generation
        self._folder = folder

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the tokens of `text`; with `special` those that the tokenizer adds to a prompt.

        An empty text has none.
        """
        if not text:
            return []
        if len(text) <= _SHORT_CHARS:
            return list(self._tokenizer.encode(text, add_special_tokens=special).ids)
        (found,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)
        return list(found.ids)

    def check_size(self, texts: Sequence[str], max_tokens: int) -> None:
        """ContextLengthError if a prompt of `texts` cannot have as few as `max_tokens` tokens.

        Counts bytes, in no time: a long prompt takes its tokenizer seconds.
        """
        limit = max_tokens * self._longest_token
        size = sum(len(each.encode()) for each in texts)
        if size > limit or len(texts) > max_tokens:
            raise ContextLengthError(
                max_tokens,
                f"the prompt has {size} bytes in {len(texts)} messages (limit {limit} bytes, "
                f"{max_tokens} messages)",
            )

    def encode_all(self, prompts: Sequence[str]) -> list[tuple[int, ...]]:
        """Return the tokens of each prompt."""
        return [tuple(self.encode(prompt)) for prompt in prompts]

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """INVALID_INPUT for tokens that the model does not have."""
        size = self._generation.vocabulary_size
        if not all(0 <= token < size for token in tokens):
            raise MlctlError(ErrorCode.INVALID_INPUT, f"tokens must be from 0 to {size - 1}")

    def token_text(self, token: int) -> tuple[str, bytes]:
        """Return the text of one token alone, and its bytes.

        The text of a part of a character is as OpenAI has it: `bytes:\\xe6\\x97`.
        """
        if self.guidance.is_special_token(token):
            text = str(self._tokenizer.decode([token], skip_special_tokens=False))
            return text, text.encode()
        content = self.guidance.decode_bytes([token])
        try:
            return content.decode(), content
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content), content

    def pieces(self) -> Callable[[int], str]:
        """Return a function of one answer's next token, which returns the text that it completes.

        That is "" inside a character.
        """
        stream = DecodeStream(skip_special_tokens=True)
        return lambda token: stream.step(self._tokenizer, token) or ""

    def render_chat(self, messages: Messages) -> str:
        """Return the prompt of a conversation, whose messages have `role` and `content`.

        INVALID_INPUT if the model has no chat template, or if the template rejects the messages.
        """
        if not self._generation.chat_template:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                "the model has no chat template",
                "Use /v1/completions with a prompt.",
            )
        return self._chat_template.render(messages)

    def compile(self, grammar: Grammar) -> LLMatcher:
        """See `compile_grammar`."""
        return compile_grammar(grammar, self.guidance)

    def grammar_process(self) -> GrammarProcess:
        """Return the process in which callers' grammars are compiled first."""
        return GrammarProcess(self._folder, self._generation)

    def constrain(self, matcher: LLMatcher) -> Constraint:
        """Return the constraint of one answer by what `compile` returned."""
        return Constraint(matcher.deep_copy(), self._generation.vocabulary_size)

    @cached_property
    def guidance(self) -> LLTokenizer:
        """The tokenizer for grammars; takes seconds for a large vocabulary, and holds up Python."""
        size, ends = self._generation.vocabulary_size, list(self._generation.eos_ids)
        return LLTokenizer(self._tokenizer.to_str(), n_vocab=size, eos_token=ends)

    @cached_property
    def _chat_template(self) -> ChatTemplate:
        return read_chat_template(self._folder)

    @cached_property
    def _longest_token(self) -> int:
        """The maximum number of bytes of a token."""
        decoder = self._tokenizer.decoder
        by_bytes = decoder is not None and b"ByteLevel" in decoder.__getstate__()
        # A tokenizer on the level of bytes writes each of them as one character.
        return max(len(each if by_bytes else each.encode()) for each in self._tokenizer.get_vocab())


class StopStrings:
    """Cuts an answer before the first of several strings.

    Text that may be the start of a stop string is held back until that is decided.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._buffer = ""
        self._longest = max(map(len, self._stops), default=0)

    def step(self, piece: str) -> tuple[str, bool]:
        """Add a piece; return the text that is certain, and whether a stop string was found."""
        if not self._stops:
            return piece, False
        text = self._buffer + piece
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._buffer = ""
            return text[: min(found)], True
        keep = next(
            size
            for size in range(min(len(text), self._longest - 1), -1, -1)
            if size == 0 or any(stop.startswith(text[-size:]) for stop in self._stops)
        )
        self._buffer = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def rest(self) -> str:
        """Return what is held back, when the answer ends otherwise."""
        buffer, self._buffer = self._buffer, ""
        return buffer


class Constraint:
    """The tokens that a grammar allows next, for one answer."""

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher = matcher
        self._mask = allocate_token_bitmask(1, vocabulary)

    def apply(self, logits: np.ndarray) -> np.ndarray:
        """Return a copy of `logits` [vocabulary] with -inf for tokens that are not allowed."""
        fill_next_token_bitmask(self._matcher, self._mask)
        self._check()
        allowed = logits.copy()
        apply_token_bitmask_inplace(allowed, self._mask)
        return allowed

    def accept(self, token: int) -> bool:
        """Note the chosen token; return whether the grammar is complete."""
        self._matcher.consume_token(token)
        self._check()
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        """INVALID_INPUT if the library gave up: it would end the answer as if it were complete."""
        if self._matcher.is_error():
            raise MlctlError(
                ErrorCode.INVALID_INPUT, "the grammar is too complex to continue the answer by it"
            )
