from __future__ import annotations

from pathlib import Path

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.tokens import parse_tokens, read_tokens, token_of

ONE, TWO = "one-token-of-many-letters", "two.token_of~many+letters/="
THREE = "three-token-of-many-letters"


def test_read_tokens__file__has_one_per_line(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# the new one\n{ONE}\n\n  {TWO}  \r\n{ONE}\n")
    assert [*read_tokens(path)] == [("unnamed", ONE), ("unnamed", TWO)]


def test_read_tokens__names__are_of_clients_that_may_have_several(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"shop: {ONE}\n{THREE}\n shop:{TWO}\r\nshop: {ONE}\n")
    assert [*read_tokens(path)] == [("shop", ONE), ("unnamed", THREE), ("shop", TWO)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no token"),
        ("# only this\n\n", "has no token"),
        (f"{ONE}\nshort", "line 2"),
        (f"{ONE} {TWO}", "line 1"),
        (f"{ONE}\x00", "line 1"),
        ("x" * 600, "line 1"),
        (f"{ONE}\nshop {TWO}", "line 2"),
        (f"the shop: {ONE}", "line 1"),
        (f": {ONE}", "line 1"),
        (f"shop: {ONE}: {TWO}", "line 1"),
        ("shop:", "line 1"),
        (f"{'n' * 65}: {ONE}", "line 1"),
        (f"shop: {ONE}\n\nsearch: {ONE}", "line 3 of the file has a token that an earlier line"),
        (f"{ONE}\nshop: {ONE}", "line 2"),
    ],
)
def test_token__invalid__is_rejected_and_not_shown(text: str, said: str) -> None:
    with pytest.raises(MlctlError, match=said) as caught:
        parse_tokens(text, "the file")
    assert caught.value.code is ErrorCode.INVALID_INPUT
    for word in ("short", ONE, TWO, "xxx"):
        assert word not in caught.value.message + caught.value.hint


@pytest.mark.parametrize("content", [None, b"\xff" * 20, b"a" * 70_000])
def test_read_tokens__unusable_file__is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "tokens"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(MlctlError, match=str(path)):
        read_tokens(path)


def test_token_of__environment__token_or_the_first_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"{TWO}\n{ONE}\n")
    assert token_of({}) is None
    assert token_of({"MLCTL_TOKEN": ""}) is None
    assert token_of({"MLCTL_TOKEN": ONE}) == token_of({"MLCTL_TOKEN": f"shop: {ONE}"}) == ONE
    assert token_of({"MLCTL_TOKEN": "", "MLCTL_TOKEN_FILE": str(path)}) == TWO
