"""What callers read about grammars that cannot be used, from the library's own messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mlctl.core.errors import MlctlError
from mlctl.services.generate.grammars import Grammar, compile_grammar

INTEGER = {"type": "integer"}


@pytest.fixture(scope="module")
def guidance() -> LLTokenizer:
    """A tokenizer that has a token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {each: number for number, each in enumerate([*alphabet, "<end>"])}
    plain = Tokenizer(models.BPE(vocabulary, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    return LLTokenizer(plain.to_str(), eos_token=len(alphabet))


def nested(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        found = {"type": "object", "properties": {"a": found}}
    return found


def object_of(properties: int, *required: int) -> dict[str, Any]:
    """An object of integers, of which those with the numbers `required` are required."""
    names = {f"p{number}": INTEGER for number in range(properties)}
    return {
        "type": "object",
        "properties": names,
        "required": [f"p{number}" for number in required],
    }


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (nested(62), "it is nested deeper than 124 levels of objects and arrays"),
        ({"type": "thing"}, "the type 'thing' does not exist"),
        ({"type": 5}, "the value of 'type' has a wrong type"),
        ({"not": INTEGER, "if": {}}, "it has keywords that are not supported: 'if', 'not'"),
        ({"oneOf": [INTEGER, INTEGER]}, "use 'anyOf'"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "'minimum' is greater than 'maximum'"),
        ({"type": "integer", "minimum": 1e19}, "a bound of a number is too large; leave it out"),
        ({"type": "number", "minimum": 1e308, "maximum": 1.5e308}, "a bound of a number is too"),
        ({"type": "number", "multipleOf": 0}, "'multipleOf' must be a number above 0"),
        ({"type": "string", "minLength": "a"}, "the value of 'minLength' has a wrong type"),
        ({"type": "string", "maxLength": 10**12}, "a length or a number of repetitions in it is"),
        ({"type": "string", "format": "x"}, "the format 'x' is not supported; leave it out"),
        ({"type": "string", "pattern": "ab("}, r"is wrong at character 3, at '\('"),
        ({"type": "string", "pattern": "a\\"}, "a regular expression ends with a lone backslash"),
        ({"type": "string", "pattern": "a", "minLength": 3, "maxLength": 1}, "is greater than"),
        ({"type": "string", "pattern": "^a$", "minLength": 3}, "nothing matches it$"),
        ({"enum": ["a"], "type": "integer"}, "nothing matches it$"),
        ({"$ref": "#"}, "nothing matches it$"),
        ({"$ref": "#/$defs/a"}, r"there is no '/\$defs/a' in it, to which a \$ref refers"),
        ({"$ref": "http://a"}, r"it refers to 'http://a'; refer only to '#/\$defs/NAME'"),
        ({"type": "object", "properties": {"a": 5}}, "a schema in it is neither an object nor"),
        ({"properties": {"a": False}, "required": ["a"], "type": "object"}, "property 'a' has no"),
        ({"type": "object", "patternProperties": {"a": {}, "b": {}}}, "could match two of its"),
        ({**object_of(3), "minProperties": 2}, "supported only if all properties are required"),
        (object_of(499), r"499 optional properties \(limit 498\)"),
        (object_of(700, 690), r"690 properties before a required one \(limit 664\)"),
        (object_of(2500, 0), r"2500 properties \(limit 1992\)"),
        ({"type": "array", "items": object_of(600)}, "has 600 optional properties"),
    ],
)
def test_compile__schema_that_cannot_be_used__is_explained_in_our_words(
    guidance: LLTokenizer, schema: dict[str, Any], words: str
) -> None:
    grammar = Grammar("json_schema", json.dumps(schema))
    with pytest.raises(MlctlError, match=f"^the json_schema cannot be used: .*{words}"):
        compile_grammar(grammar, guidance)


@pytest.mark.parametrize(
    ("regex", "words"),
    [
        ("ab(c", r"regular expression is wrong at character 3, at '\(c'"),
        ("a{5,3}", r"is wrong at character 2, at '\{5,3\}'"),
        (r"\u{110000}", "is wrong at character 4"),
        ("(?=a)b", "look-around, word boundaries, and . and . inside are not supported"),
        (r"a\b", "look-around, word boundaries"),
        (r"(a)\1", "references to groups are not supported"),
        ("a\\", "ends with a lone backslash"),
        (r"[^\s\S]", "nothing matches it"),
    ],
)
def test_compile__regex_that_cannot_be_used__is_explained_in_our_words(
    guidance: LLTokenizer, regex: str, words: str
) -> None:
    with pytest.raises(MlctlError, match=f"^the regex cannot be used: .*{words}"):
        compile_grammar(Grammar("regex", regex), guidance)


@pytest.mark.parametrize(
    ("schema", "answer"),
    [
        (nested(61), '{"a":{}}'),
        (object_of(498), '{"p5":1,"p497":2}'),
        (object_of(600, 599), '{"p5":1,"p599":2}'),
        (object_of(664, 663), '{"p5":1,"p663":2}'),
        (object_of(1900, 0), '{"p0":1,"p5":1,"p1899":2}'),
        (object_of(1300, 650), '{"p5":1,"p650":1,"p1299":2}'),
        ({"const": {"pattern": "\\"}}, '{"pattern":"\\\\"}'),
    ],
    ids=["deep", "optional", "last", "before", "after", "middle", "data"],
)
def test_compile__schema_within_the_limits__its_answers_can_be_written(
    guidance: LLTokenizer, schema: dict[str, Any], answer: str
) -> None:
    matcher = compile_grammar(Grammar("json_schema", json.dumps(schema)), guidance)
    assert follow(matcher, guidance, answer) == ""


def test_compile__regex_with_two_backslashes_at_its_end__is_one_backslash(
    guidance: LLTokenizer,
) -> None:
    matcher = compile_grammar(Grammar("regex", r"a\\"), guidance)
    assert follow(matcher, guidance, "a\\") == ""


def follow(matcher: LLMatcher, guidance: LLTokenizer, answer: str) -> str:
    """Write `answer`; return the library's error, or what it did not take."""
    for token in guidance.tokenize_str(answer):
        matcher.compute_bitmask()
        if not matcher.consume_token(token):
            return str(matcher.get_error()) or f"it ended before {answer!r}"
    return "" if matcher.is_accepting() else "it is not complete"
