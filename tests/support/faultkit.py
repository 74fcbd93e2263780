"""Reads a fault that is told in a file, one step on each line, and takes the steps.

A line is a sentence of the vocabulary, which the modules of steps say with `step`; a line that
begins with # is for the reader, and so is an indented one's indentation.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

Step = Callable[..., None]
_FIELD = re.compile(r"\{(\w+)\}")
_KINDS = {"number": r"(\d+)", "text": r'"([^"]*)"', "word": r"(\S+)", "rest": r"(.+)"}


class Vocabulary:
    """The sentences that scenarios are made of, each with what it does."""

    def __init__(self) -> None:
        self._steps: dict[str, tuple[re.Pattern[str], list[str], Step]] = {}

    def step(self, sentence: str) -> Callable[[Step], Step]:
        """The decorated function takes the world, and what stands for {number}, {text}, ...

        {number} is an int, {text} is in double quotes, {word} has no spaces and {rest} is all
        that follows.
        """

        def add(function: Step) -> Step:
            pieces = _FIELD.split(sentence)
            pattern = "".join(
                _KINDS[piece] if place % 2 else re.escape(piece)
                for place, piece in enumerate(pieces)
            )
            self._steps[sentence] = (re.compile(pattern), pieces[1::2], function)
            return function

        return add

    def read(self, path: Path) -> list[tuple[str, Callable[[Any], None]]]:
        """The steps of a scenario, each with where it stands; AssertionError if one is unknown."""
        steps = []
        for number, line in enumerate(path.read_text().splitlines(), 1):
            sentence = line.strip()
            if sentence and not sentence.startswith("#"):
                place = f"{path.name}:{number}: {sentence}"
                steps.append((place, self._find(sentence, place)))
        assert steps, f"{path.name} has no step"
        return steps

    def _find(self, sentence: str, place: str) -> Callable[[Any], None]:
        for pattern, kinds, function in self._steps.values():
            found = pattern.fullmatch(sentence)
            if found:
                told = zip(kinds, found.groups(), strict=True)
                values = [int(value) if kind == "number" else value for kind, value in told]
                return lambda world: function(world, *values)
        near = difflib.get_close_matches(sentence, self._steps, n=3, cutoff=0)
        raise AssertionError(f"{place}\nThere is no such step. Near: {'; '.join(near)}")


def play(vocabulary: Vocabulary, path: Path, world: Any) -> None:
    """Take every step of the scenario; what fails says which one it was."""
    for place, take in vocabulary.read(path):
        try:
            take(world)
        except AssertionError as error:
            raise AssertionError(f"{place}\n{error}") from error
