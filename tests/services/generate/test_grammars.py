"""Grammars are compiled in a process of their own, which ends what takes too long."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from mlctl.bundle.manifest import GENERATION_FOLDER
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.generate.grammars import Grammar, GrammarProcess

pytestmark = pytest.mark.slow


def schema(document: dict[str, Any]) -> Grammar:
    return Grammar("json_schema", json.dumps(document))


def nested(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        found = {"type": "object", "properties": {"a": found}}
    return found


@pytest.fixture
def process(tiny_llm_bundle: VerifiedBundle) -> Iterator[GrammarProcess]:
    assert tiny_llm_bundle.manifest.generation is not None
    folder = tiny_llm_bundle.root / GENERATION_FOLDER
    found = GrammarProcess(folder, tiny_llm_bundle.manifest.generation)
    yield found
    found.close()


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (schema(nested(150)), "nested deeper than 124 levels"),
        (schema({"type": "thing"}), "the type .thing. does not exist"),
        (Grammar("regex", "(" * 100_000), "the regex cannot be used: "),
    ],
    ids=["deep", "wrong", "parentheses"],
)
def test_check__a_grammar_that_cannot_be_used__is_rejected_and_the_next_is_checked(
    process: GrammarProcess, grammar: Grammar, words: str
) -> None:
    with pytest.raises(MlctlError, match=words) as caught:
        process.check(grammar, 1.0)
    assert caught.value.code is ErrorCode.INVALID_INPUT
    process.check(schema({"type": "integer", "multipleOf": 5}), 1.0)


def test_check__takes_too_long__is_ended_and_the_next_is_checked(process: GrammarProcess) -> None:
    assert not process.check(schema({"type": "integer", "multipleOf": 1000003}), 0.1)
    assert process.check(schema({"type": "integer", "multipleOf": 5}), 1.0)


def test_check__the_process_was_killed__the_next_grammar_starts_another(
    process: GrammarProcess,
) -> None:
    process.check(Grammar("regex", "a"), 1.0)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    process.check(Grammar("regex", "a"), 1.0)
