"""Option types that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import reduce
from pathlib import Path
from typing import Any

import click

from bundle.errors import ErrorCode, MlctlError

OUTPUT_FILE = click.Path(dir_okay=False, path_type=Path)
OUTPUT_FOLDER = click.Path(file_okay=False, path_type=Path)
PORT = click.IntRange(1, 65_535)

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


class Duration(click.ParamType[float]):
    """A duration such as 500ms, 30s, 10m, 1h30m or 7d, converted to seconds."""

    name = "duration"

    def __init__(self, minimum: str = "0s", maximum: str | None = None) -> None:
        self._minimum = minimum
        self._maximum = maximum

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):  # already converted
            return value
        text = str(value)
        seconds = parse_duration(text)
        if seconds is None:
            self.fail(f"{text!r} is not a duration; write it as 30s, 10m or 1h.", param, ctx)
        if seconds < (parse_duration(self._minimum) or 0.0):
            self.fail(f"{text} is too short: the minimum is {self._minimum}.", param, ctx)
        if self._maximum is not None and seconds > (parse_duration(self._maximum) or 0.0):
            self.fail(f"{text} is too long: the maximum is {self._maximum}.", param, ctx)
        return seconds


def parse_duration(text: str) -> float | None:
    """Return the seconds of a duration such as 1h30m or 0, None if `text` is not one."""
    if text == "0":
        return 0.0
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def add_options(
    options: tuple[Callable[..., Any], ...], command: Callable[..., Any]
) -> Callable[..., Any]:
    """Decorate `command` with `options`, in the order in which its help lists them."""
    return reduce(lambda made, option: option(made), reversed(options), command)


def parse_options(texts: Iterable[str]) -> dict[str, str]:
    """Parse `--option NAME=VALUE` values by name; INVALID_INPUT for another form."""
    found = [text.partition("=") for text in texts]
    if wrong := next((name for name, separator, _value in found if not separator), None):
        raise MlctlError(ErrorCode.INVALID_INPUT, f"--option {wrong}: write it as NAME=VALUE")
    return {name: value for name, _separator, value in found}
