"""Prove that a model's chat template renders as transformers renders it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.quiet import first_line, quiet
from mlctl.services.generate.chat_template import (
    ChatTemplate,
    has_chat_template,
    read_chat_template,
)

_USER = {"role": "user", "content": 'How many "words" are <in> this?\nÜber 5 & 漢字 '}
_ASSISTANT = {"role": "assistant", "content": " Seven.\n"}
_SYSTEM = {"role": "system", "content": "Be brief."}
# The first one every chat model must accept.
_CONVERSATIONS = (
    [_USER],
    [_SYSTEM, _USER],
    [_USER, _ASSISTANT, _USER],
    [_SYSTEM, *[_USER, _ASSISTANT] * 3, _USER],
)


def check_chat_template(folder: Path, label: str) -> None:
    """Compare the chat template of the tokenizer in `folder`, if it has one, with transformers.

    UNSUPPORTED_MODEL names `label` and what is wrong: the template cannot be read, rejects a
    message of a user, or renders otherwise.
    """
    if not has_chat_template(folder):
        return
    import transformers

    with quiet():
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    try:
        template = read_chat_template(folder)
        for messages in _CONVERSATIONS:
            _compare(template, tokenizer, messages, required=messages is _CONVERSATIONS[0])
    except MlctlError as error:
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            f"{label} is not usable: {error.message}",
            "Correct its chat template, or remove it: /v1/completions needs none.",
        ) from error


def _compare(
    template: ChatTemplate, tokenizer: Any, messages: list[dict[str, str]], *, required: bool
) -> None:
    """Raise MlctlError unless both render `messages` alike, or both reject them."""
    before = _ours(template, messages)
    try:
        expected = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
    except Exception as error:  # a template is a program
        if required:
            raise MlctlError(
                ErrorCode.UNSUPPORTED_MODEL,
                f"its chat template rejects a message of a user ({first_line(error)})",
            ) from error
        expected = None
    # Twice, because a template may tell the time.
    if expected not in (before, _ours(template, messages)):
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL, "its chat template renders otherwise in transformers"
        )


def _ours(template: ChatTemplate, messages: list[dict[str, str]]) -> str | None:
    try:
        return template.render(messages)
    except MlctlError:
        return None
