"""Chat templates, rendered as transformers renders them.

The template comes with the model, from anywhere: in the sandbox it reaches nothing but the
messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from mlctl.core.errors import ErrorCode, MlctlError

Messages = Sequence[Mapping[str, str]]

TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
TEMPLATE_NAME = "chat_template.jinja"
_SPECIAL_TOKENS = (
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
)
_REASON_CHARS = 200


class ChatTemplate:
    """The chat template of a tokenizer's folder."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """UNSUPPORTED_MODEL for a template that cannot be parsed.

        `special_tokens` are the tokens that the template may name, such as `bos_token`.
        """
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "dict": _Dict(),
            "namespace": _Namespace,
        }
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except (TemplateError, RecursionError, SyntaxError, ValueError) as error:
            raise MlctlError(
                ErrorCode.UNSUPPORTED_MODEL, f"the chat template cannot be read: {_reason(error)}"
            ) from error

    def render(self, messages: Messages) -> str:
        """Return the prompt of a conversation, whose messages have `role` and `content`.

        INVALID_INPUT if the template rejects the messages.
        """
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        # A template is a program: it may index, add and divide what is not there.
        except Exception as error:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"the chat template rejects the messages: {_reason(error)}",
            ) from error


def has_chat_template(folder: Path) -> bool:
    """Return whether the tokenizer in `folder` has a chat template."""
    return (folder / TEMPLATE_NAME).is_file() or bool(_config(folder).get("chat_template"))


def read_chat_template(folder: Path) -> ChatTemplate:
    """Return the chat template of the tokenizer in `folder`, which has one.

    UNSUPPORTED_MODEL for one that cannot be parsed, or several of which none is the default.
    """
    config = _config(folder)
    file = folder / TEMPLATE_NAME
    source = file.read_text(encoding="utf-8") if file.is_file() else config["chat_template"]
    if isinstance(source, list):  # older models have several, each with a name
        named = {each["name"]: each["template"] for each in source}
        source = named.get("default")
    if not isinstance(source, str):
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL, "the model has several chat templates, none is the default"
        )
    tokens = {name: _special(config[name]) for name in _SPECIAL_TOKENS if config.get(name)}
    return ChatTemplate(source, tokens)


def _config(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / TOKENIZER_CONFIG_NAME).read_text())
    return found


def _special(value: Any) -> str:
    """Return a special token, which the configuration has as text or as an object."""
    return str(value["content"]) if isinstance(value, dict) else str(value)


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:_REASON_CHARS]


class _Generation(Extension):
    """`{% generation %}` marks what a model is trained on; in a prompt it marks nothing."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Namespace(Namespace):
    """jinja2's namespace without names that begin with an underscore."""

    def __init__(*args: Any, **values: Any) -> None:
        self, args = args[0], args[1:]
        for name in dict(*args, **values):
            _check_name(name)
        Namespace.__init__(self, *args, **values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"{name!r} is not a name for a namespace")


class _Dict:
    """`dict` for templates: its functions, and none of its attributes."""

    def __call__(self, *args: Any, **values: Any) -> dict[Any, Any]:
        return dict(*args, **values)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - local time, as in transformers


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
