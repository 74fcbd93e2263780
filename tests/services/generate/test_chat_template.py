"""Chat templates give the text that transformers gives, and reach nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.generate.chat_template import ChatTemplate, read_chat_template

MESSAGES = [
    {"role": "system", "content": "kurz"},
    {"role": "user", "content": 'say "ü" <b>'},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "more"},
]
TOKENS = {"bos_token": "<s>", "pad_token": "<pad>"}
LOOP = "{% for m in messages %}\n  BODY\n{% endfor %}"


def loop(body: str) -> str:
    return LOOP.replace("BODY", body)


@pytest.mark.parametrize(
    "source",
    [
        loop(
            "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ m.content }}"
            "{% endgeneration %}{{ x }}{{ loop.index }}"
        ),
        loop("{% if loop.index > 2 %}{% break %}{% endif %}{{ m.content }}"),
        loop("{% if loop.first %}{% continue %}{% endif %}{{ m.content }}"),
        "{{ strftime_now('%d %B %Y') }}",
        loop("{{ m | tojson(ensure_ascii=True, indent=2, sort_keys=True) }}"),
        loop("{{ m | tojson(separators=(',', ':')) }}"),
        "{% if tools is not none or documents is not none %}TOOLS{% endif %}{{ bos_token }}",
        loop("{{ m.content }}{{ pad_token }}{{ unk_token }}"),
        "{% set n = namespace(a=dict(b=1), self=2) %}{% set n.a = 3 %}{{ n.a }}{{ n.self }}",
        "{{ bos_token }}{% if add_generation_prompt %}assistant{% endif %}",
    ],
)
def test_render__what_public_templates_use__is_the_text_of_transformers(source: str) -> None:
    render: Any = render_jinja_template
    (expected,), _ = render(
        conversations=[MESSAGES], chat_template=source, add_generation_prompt=True, **TOKENS
    )

    assert ChatTemplate(source, TOKENS).render(MESSAGES) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__[1]() }}",
        "{% set n = namespace(__init__=1) %}",
        "{{ raise_exception('no system message') }}",
        "{{ messages[9].content | tojson }}",
        "{{ 1 // 0 }}",
        "{{ 'a' + 1 }}",
        "{{ messages.append(1) }}",
    ],
)
def test_render__a_template_fails__the_messages_are_rejected(source: str) -> None:
    with pytest.raises(MlctlError, match="the chat template rejects the messages") as caught:
        ChatTemplate(source, {}).render(MESSAGES)
    assert caught.value.code is ErrorCode.INVALID_INPUT


@pytest.mark.parametrize(
    "source", ["{% for %}", "{% unknown %}", "{% break %}", "{{ a | nofilter }}"]
)
def test_chat_template__cannot_be_parsed__is_unsupported(source: str) -> None:
    with pytest.raises(MlctlError, match="the chat template cannot be read") as caught:
        ChatTemplate(source, {})
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL


def test_read_chat_template__several_with_names__is_the_default(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(
        '{"bos_token": {"content": "<s>"}, "chat_template": ['
        '{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{bos_token}}"}]}'
    )
    assert read_chat_template(tmp_path).render(MESSAGES) == "<s>"
