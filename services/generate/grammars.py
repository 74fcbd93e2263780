"""Grammars of structured output: JSON schemas and regular expressions, which come from callers.

A few bytes can take the library a minute and gigabytes: its own limits do not bound all of its
work. Each grammar is therefore compiled first in a process of its own, which the system ends at a
limit on its processor time and memory (`grammar_process.py`). Only a grammar that has passed there
is compiled in the process of the model.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import IO, Literal, NamedTuple

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from mlctl.bundle.manifest import Generation
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.generate.grammar_problems import check_regex, check_schema, explain

GrammarKind = Literal["json_schema", "regex"]
# States of the lexer take 1 to 2 kB each, and come while an answer is written.
_MAX_LEXER_STATES = 50_000
# For a compilation whose process has not been ended by its own limit, as on a machine that stalls.
_PATIENCE_SECONDS = 60.0


class Grammar(NamedTuple):
    """The source of a grammar."""

    kind: GrammarKind
    source: str

    @property
    def param(self) -> str:
        """The request's parameter that has it."""
        return "guided_regex" if self.kind == "regex" else "response_format.json_schema"


def compile_grammar(grammar: Grammar, guidance: LLTokenizer) -> LLMatcher:
    """Return the matcher of `grammar` at its start; INVALID_INPUT says what is wrong with it.

    Copy it for each answer. Takes long for some grammars: see `GrammarProcess`.
    """
    regex = grammar.kind == "regex"
    if problem := (check_regex if regex else check_schema)(grammar.source):
        raise unusable(grammar.kind, problem)
    try:
        if regex:
            rules = LLMatcher.grammar_from_regex(grammar.source)
        else:
            rules = LLMatcher.grammar_from_json_schema(grammar.source)
        limits = LLParserLimits(max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)
        matcher = LLMatcher(guidance, rules, log_level=0, limits=limits)
        matcher.compute_bitmask()  # what may begin an answer is beyond the limits of some grammars
        problem = matcher.get_error()
    except ValueError as error:
        problem = str(error)
    if problem:
        raise unusable(grammar.kind, explain(problem))
    return matcher


def unusable(kind: GrammarKind, reason: str) -> MlctlError:
    """Return the error of a grammar that cannot be compiled."""
    return MlctlError(ErrorCode.INVALID_INPUT, f"the {kind} cannot be used: {reason}")


class GrammarProcess:
    """The process that compiles grammars first; it starts with the first one.

    Call it from one thread at a time.
    """

    def __init__(self, folder: Path, generation: Generation) -> None:
        self._arguments = [
            str(folder / "tokenizer.json"),
            str(generation.vocabulary_size),
            *map(str, generation.eos_ids),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The number of the process; None before the first grammar."""
        return None if self._process is None else self._process.pid

    def check(self, grammar: Grammar, seconds: float) -> bool:
        """Return whether it compiles in so many seconds of processor time, and in little memory.

        INVALID_INPUT for one that is wrong.
        """
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps([grammar, seconds]).encode() + b"\n")
            process.stdin.flush()
            answer = _read_line(process.stdout)
        except OSError:
            answer = b""
        if not answer.endswith(b"\n"):
            self.close()
            raise MlctlError(ErrorCode.UNAVAILABLE, "the process that compiles grammars ended")
        problem = json.loads(answer)
        if problem:
            raise MlctlError(ErrorCode.INVALID_INPUT, problem)
        return problem is not None

    def close(self) -> None:
        """End the process; the next grammar starts another."""
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.communicate()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._process is None:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "mlctl.services.generate.grammar_process",
                    *self._arguments,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        return self._process


def _read_line(stream: IO[bytes]) -> bytes:
    """Return the answer to one grammar, cut off if none came in time."""
    ready, _, _ = select.select([stream], [], [], _PATIENCE_SECONDS)
    return stream.readline() if ready else b""
