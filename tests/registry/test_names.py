from __future__ import annotations

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.text import near_names, printable, suggestion
from mlctl.registry.names import ModelRef, bundle_name, optimized_name, parse_ref


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("models:/digits@candidate", ModelRef("digits", alias="candidate")),
        ("models:/digits/3", ModelRef("digits", version="3")),
        ("digits@candidate", ModelRef("digits", alias="candidate")),
        ("digits/3", ModelRef("digits", version="3")),
        ("digits", ModelRef("digits")),
        ("My Model.v2", ModelRef("My Model.v2")),
    ],
)
def test_parse_ref__every_form__is_read(text: str, expected: ModelRef) -> None:
    assert parse_ref(text) == expected
    assert parse_ref(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "name"),
        ("models:/", "name"),
        ("digits@", "alias"),
        ("digits/", "version"),
        ("digits/latest", "version"),
        ("digits/0", "version"),
        ("digits/1/2", "version"),
        ("a/b@c", "name"),
        ("x' or name like '%", "name"),
        ("../etc", "name"),
        ("runs:/abc/model", "name"),
    ],
)
def test_parse_ref__a_wrong_reference__names_its_part(text: str, part: str) -> None:
    with pytest.raises(MlctlError, match=f"is not a {part}") as caught:
        parse_ref(text)
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert "NAME@alias" in caught.value.hint


def test_optimized_name__twice__is_the_same() -> None:
    assert optimized_name("digits") == "digits-optimized"
    assert optimized_name("digits-optimized") == "digits-optimized"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("digits", "digits"), ("My Model", "my-model"), ("_x_", "x"), ("A" * 90, "a" * 63)],
)
def test_bundle_name__any_name__fits_the_pattern(name: str, expected: str) -> None:
    assert bundle_name(name) == expected


def test_bundle_name__no_letters__is_rejected() -> None:
    with pytest.raises(MlctlError, match="no letters"):
        bundle_name("...")


def test_suggestion__unknown_name__lists_similar_names_else_all() -> None:
    assert near_names("digit", ["digits", "weather"]) == ("digits",)
    assert "did you mean 'digits'?" in suggestion("digit", ["digits"], "registered models")
    assert suggestion("zzz", ["b", "a"], "registered models") == "registered models: a, b"
    assert suggestion("zzz", [], "registered models") == "registered models: none"


def test_printable__control_characters__are_replaced() -> None:
    assert "\x1b" not in printable("\x1b[2Jred")
    assert "\x1b" not in suggestion("digits", ["digits\x1b[2J"], "models")
