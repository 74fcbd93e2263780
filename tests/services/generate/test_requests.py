"""What is read of a request, and what is rejected by name."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from mlctl.core.errors import MlctlError
from mlctl.services.generate.requests import (
    ChatRequest,
    CompletionRequest,
    ParameterError,
    V2Request,
    parse_request,
)

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "a"}]}


def named_schema(name: str) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": name, "schema": {"type": "integer"}}}
    return {"response_format": form}


def parse(kind: Any, document: dict[str, Any]) -> Any:
    found = parse_request(kind, json.dumps(document).encode())
    if kind is not V2Request:
        found.check()
    return found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("guided_choice", ["a"]),
        ("guided_json", {}),
        ("structured_outputs", {"choice": ["a"]}),
        ("min_tokens", 5),
        ("ignore_eos", True),
        ("repetition_penalty", 1.1),
        ("min_p", 0.1),
        ("stop_token_ids", [5]),
        ("web_search_options", {}),
        ("tool_choice", "required"),
        ("tools", [{"type": "function"}]),
        ("logit_bias", {"5": 1}),
        ("n", 2),
        ("n", True),
        ("echo", 0),
        ("store", 0),
        ("presence_penalty", False),
        ("min_tokens", False),
        ("max_token", 5),
    ],
)
def test_parse__a_parameter_that_would_be_ignored__is_rejected_by_name(
    name: str, value: Any
) -> None:
    with pytest.raises(ParameterError, match=f"the parameter '{name}' is not supported") as caught:
        parse(ChatRequest, {**CHAT, name: value})
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"stop": ["a"] * 5}, "stop", "Invalid 'stop': array too long.* maximum length 4, but"),
        ({"user": 5}, "user", "must be a string"),
        ({"safety_identifier": ["a"]}, "safety_identifier", "must be a string"),
        ({"prompt_cache_key": 5}, "prompt_cache_key", "must be a string"),
        ({"prompt_cache_retention": 24}, "prompt_cache_retention", "must be a string"),
        ({"metadata": "x"}, "metadata", "must be an object"),
        ({"metadata": {"a": 5}}, "metadata.a", "must be a string"),
        ({"metadata": {str(at): "" for at in range(17)}}, "metadata", "has 17 pairs .limit 16."),
        ({"parallel_tool_calls": "x"}, "parallel_tool_calls", "must be true or false"),
        ({"prediction": 5}, "prediction", "must be an object"),
        ({"prediction": {"type": "content"}}, "prediction.content", "is missing"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens", "two names of one limit"),
        ({"stop": [5]}, "stop.0", "must be a string"),
        ({"seed": 2**64}, "seed", "must be an integer of at most 64 bits"),
        ({"messages": ["a"]}, "messages.0", "must be an object$"),
        ({"response_format": 5}, "response_format", "must be an object$"),
        (
            {"response_format": {"type": "json_schema", "json_schema": 5}},
            "response_format.json_schema",
            "must be an object$",
        ),
        ({"str": 5}, "str", "'str' is not supported"),
        ({"a" * 500: 5}, "a" * 100, r"a\.\.\. is not supported"),
        ({"messages": [{"role": "user"}]}, "messages", "the role 'user' has no content"),
        (named_schema(""), "response_format.json_schema.name", "1 to 64 of the characters"),
        (named_schema("a b"), "response_format.json_schema.name", "1 to 64 of the characters"),
        (named_schema("a" * 65), "response_format.json_schema.name", "1 to 64 of the characters"),
        (
            {"response_format": {"type": "json_object", "json_schema": {"schema": {}}}},
            "response_format.json_schema",
            "a format of the type 'json_object' has no schema",
        ),
        (
            {"messages": [{"role": "user", "content": []}]},
            "messages.0.content",
            "at least 1 item",
        ),
        ({"stop": 5}, "stop", "'stop' must be a string or a list"),
        ({"top_logprobs": 2}, "top_logprobs", "only allowed when 'logprobs' is true"),
        ({"stream_options": {}}, "stream_options", "only allowed when 'stream' is true"),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats",
            "not supported",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]},
            "messages.0.tool_calls",
            "not supported",
        ),
        (
            {"messages": [{"role": "tool", "content": "5", "tool_call_id": "a"}]},
            "messages.0.role",
            "must be 'system'",
        ),
        (
            {"guided_regex": "a", "response_format": {"type": "json_object"}},
            "guided_regex",
            "has a response_format as well",
        ),
    ],
)
def test_parse__wrong_parameters__are_named(change: dict[str, Any], param: str, words: str) -> None:
    def read() -> None:
        found = parse(ChatRequest, {**CHAT, **change})
        found.grammar()
        found.request([1], 1)

    with pytest.raises(ParameterError, match=words) as caught:
        read()
    assert caught.value.param == param


def test_grammar__schema_with_options_of_the_grammar_library__is_rejected() -> None:
    """With them, an answer to a schema was no JSON: {"a"=>null}."""
    schema = {"type": "object", "x-guidance": {"key_separator": "=>"}}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    found = parse(ChatRequest, {**CHAT, "response_format": form})
    with pytest.raises(ParameterError, match="'x-guidance', which is not JSON Schema's"):
        found.grammar()


def test_grammar__schema_150_levels_deep__is_rejected() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(150):
        schema = {"type": "object", "properties": {"a": schema}}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    found = parse(ChatRequest, {**CHAT, "response_format": form})
    with pytest.raises(ParameterError, match="nested deeper than 124 levels"):
        found.grammar()


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        (CompletionRequest, {"model": "m", "prompt": [0.5] * 300_000}),
        (ChatRequest, {"model": "m", "messages": [1] * 300_000}),
        (ChatRequest, {**CHAT, **{f"a{number}": 1 for number in range(100_000)}}),
        (V2Request, {"text_input": "a", **{f"a{number}": 1 for number in range(100_000)}}),
        (ChatRequest, {**CHAT, "metadata": {f"a{number}": 1 for number in range(100_000)}}),
    ],
    ids=["prompt", "messages", "fields", "beside", "metadata"],
)
def test_parse__many_faults__the_first_ends_it(kind: Any, document: dict[str, Any]) -> None:
    tracemalloc.start()
    try:
        body = json.dumps(document).encode()
        before, _ = tracemalloc.get_traced_memory()
        with pytest.raises(MlctlError):
            parse_request(kind, body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < 60_000_000


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "is empty"),
        (b"{", r"the body is not JSON \(line 1, column 2\)"),
        (b'{"model": "\\ud83d"}', r"has a lone surrogate .* \(line 1, column 12\)"),
        (b'{"model": "\\ude00"}', "has a lone surrogate"),
        (b'{"model": "\xed\xa0\x80"}', "is not UTF-8"),
        (b'{"seed": 1e400}', "has a number beyond 1.8e308"),
        (b'{"seed": %s}' % (b"9" * 401), "has a number beyond 1.8e308"),
        (b'{"a": ' * 2000, "is nested deeper than 1,024 levels"),
        (b"[]", "the body is not a JSON object"),
    ],
)
def test_parse__not_json__says_what_is_wrong_and_where(body: bytes, words: str) -> None:
    with pytest.raises(MlctlError, match=words):
        parse_request(ChatRequest, body)


def test_parse__what_changes_no_answer__is_accepted() -> None:
    message: dict[str, Any] = {"role": "assistant", "content": "a"}
    message |= {"refusal": None, "tool_calls": [], "name": "b"}
    found = parse(
        ChatRequest,
        {
            **CHAT,
            "messages": [message],
            "n": 1,
            "user": "someone",
            "metadata": {"a": "b"},
            "prediction": {"type": "content", "content": "a"},
            "parallel_tool_calls": True,
            "max_completion_tokens": None,
            "max_tokens": 5,
            "stop": list("abcd"),
            **named_schema("a-B_9"),
            "tools": [],
            "tool_choice": "auto",
            "presence_penalty": 0.0,
            "guided_json": None,
        },
    )
    assert found.messages[0].fields == {"role": "assistant", "content": "a", "name": "b"}
    assert parse(CompletionRequest, {"model": "m", "prompt": "a", "echo": False}).prompt == "a"


def test_v2__parameters_beside_the_text__are_those_of_tensorrt_llm() -> None:
    found = parse(
        V2Request,
        {
            "text_input": "a",
            "max_tokens": 3,
            "bad_words": "",
            "stop_words": "",
            "random_seed": 7,
            "stream": False,
            "parameters": {"temperature": 0.5},
        },
    ).parameters
    assert (found.max_tokens, found.seed, found.temperature, found.stop) == (3, 7, 0.5, [])
    assert (
        len(parse(V2Request, {"text_input": "a", "stop_words": ["b"] * 16}).parameters.stop) == 16
    )
    empties: list[Any] = [[], False, 0, ""]
    for empty in empties:
        with pytest.raises(ParameterError) as caught:
            parse(V2Request, {"text_input": "a", "parameters": empty})
        assert caught.value.param == "parameters"
    for wrong, words in (
        ({"seed": 1, "random_seed": 2}, "'seed' is given twice"),
        ({"random_seed": 2, "parameters": {"seed": 1}}, "'seed' is given twice"),
        ({"stop": "a", "stop_words": "b"}, "'stop' is given twice"),
        ({"beam_width": True}, "beam_width' is not supported"),
        ({"max_tokens": 3, "parameters": {"max_tokens": 3}}, "'max_tokens' is given twice"),
        ({"bad_words": "no"}, "bad_words' is not supported"),
        ({"parameters": {"maxtokens": 3}}, "maxtokens' is not supported"),
    ):
        with pytest.raises(ParameterError, match=words):
            parse(V2Request, {"text_input": "a", **wrong})
