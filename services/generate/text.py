"""Text to tokens and back: the tokenizer, the chat template, stop strings, structured output."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import (
    allocate_token_bitmask,
    apply_token_bitmask_inplace,
    fill_next_token_bitmask,
)
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import Generation

_REASON_CHARS = 200


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
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def encode_all(self, prompts: np.ndarray) -> list[tuple[int, ...]]:
        """Return the tokens of BYTES `prompts` [rows]; INVALID_INPUT for one that is not UTF-8."""
        try:
            return [tuple(self.encode(prompt.decode())) for prompt in prompts]
        except UnicodeDecodeError as error:
            raise MlctlError(ErrorCode.INVALID_INPUT, "a prompt is not UTF-8") from error

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """INVALID_INPUT for tokens that the model does not have."""
        size = self._generation.vocabulary_size
        if not all(0 <= token < size for token in tokens):
            raise MlctlError(ErrorCode.INVALID_INPUT, f"tokens must be from 0 to {size - 1}")

    def token_text(self, token: int) -> str:
        """Return the text of one token alone."""
        return str(self._tokenizer.decode([token], skip_special_tokens=False))

    def pieces(self) -> Callable[[int], str]:
        """Return a function of one answer's next token, which returns the text that it completes.

        That is "" inside a character.
        """
        stream = DecodeStream(skip_special_tokens=True)
        return lambda token: stream.step(self._tokenizer, token) or ""

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the prompt of a conversation, whose messages have `role` and `content`.

        INVALID_INPUT if the model has no chat template, or if the template rejects the messages.
        """
        if not self._generation.chat_template:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                "the model has no chat template",
                "Use /v1/completions with a prompt.",
            )
        template, names = self._chat_template
        try:
            return str(template.render(messages=messages, add_generation_prompt=True, **names))
        except (TemplateError, TypeError) as error:
            raise MlctlError(
                ErrorCode.INVALID_INPUT, f"the chat template rejects the messages: {error}"
            ) from error

    def grammar(self, kind: Literal["json_schema", "regex"], source: str) -> str:
        """Compile a `json_schema` or `regex`; INVALID_INPUT says what is wrong with it."""
        try:
            if kind == "regex":
                grammar = str(LLMatcher.grammar_from_regex(source))
            else:
                grammar = str(LLMatcher.grammar_from_json_schema(source))
            problem = LLMatcher.validate_grammar(grammar, self._guidance)
        except ValueError as error:
            problem = str(error)
        if problem:
            first = problem.splitlines()[0][:_REASON_CHARS]
            raise MlctlError(ErrorCode.INVALID_INPUT, f"the {kind} cannot be used: {first}")
        return grammar

    def constrain(self, grammar: str) -> Constraint:
        """Return the constraint of one answer by a grammar of `grammar`."""
        return Constraint(LLMatcher(self._guidance, grammar), self._generation.vocabulary_size)

    @cached_property
    def _guidance(self) -> LLTokenizer:
        size, ends = self._generation.vocabulary_size, list(self._generation.eos_ids)
        return LLTokenizer(self._tokenizer.to_str(), n_vocab=size, eos_token=ends)

    @cached_property
    def _chat_template(self) -> tuple[Any, dict[str, str]]:
        config = json.loads((self._folder / "tokenizer_config.json").read_text())
        file = self._folder / "chat_template.jinja"
        source = file.read_text() if file.is_file() else config["chat_template"]
        # The template comes with the model: it must not reach anything but the messages.
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        names = {name: _special(config.get(name)) for name in ("bos_token", "eos_token")}
        return environment.from_string(source), names


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
        allowed = logits.copy()
        apply_token_bitmask_inplace(allowed, self._mask)
        return allowed

    def accept(self, token: int) -> bool:
        """Note the chosen token; return whether the grammar is complete."""
        self._matcher.consume_token(token)
        return bool(self._matcher.is_stopped())


def _special(value: Any) -> str:
    """Return a special token, which the configuration has as text or as an object."""
    return str(value["content"]) if isinstance(value, dict) else str(value or "")


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
