"""Options as fields of a class, and the option types that several commands share."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from mlctl.core.errors import ErrorCode, MlctlError

CONTEXT_SETTINGS = {
    "help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True,
}  # fmt: skip
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


_TYPES = {"int": int, "float": float, "Path": click.Path(path_type=Path)}


def option(
    default: object = None,
    type: object = None,  # noqa: A002 - click's word
    *,
    help: str,  # noqa: A002
    name: str | None = None,
    **settings: Any,
) -> Any:
    """Declare an option as a field of a dataclass that a command `takes`.

    A bool is a flag, a tuple an option that can be repeated, unless `type` or a callback in
    `settings` converts the text. `name` is "--dest" for a field `dest` by default; `settings` are
    those of `click.option`.
    """
    settings |= {"help": help, "type": type, "default": default, "name": name}
    return dataclasses.field(default=default, metadata=settings)


def takes(**groups: type[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options of dataclasses to a command; its help lists required ones first.

    The command gets an object of each class, by the name of its argument.
    """
    fields = {name: dataclasses.fields(group) for name, group in groups.items()}

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def body(*args: Any, **values: Any) -> Any:
            for name, group in groups.items():
                found = {field.name: values.pop(field.name) for field in fields[name]}
                values[name] = group(**found)
            return command(*args, **values)

        listed = [field for each in fields.values() for field in each]
        listed.sort(key=lambda field: not field.metadata.get("required"))
        for field in reversed(listed):
            body = _click_option(field)(body)
        return body

    return decorate


def _click_option(field: dataclasses.Field[Any]) -> Callable[[Callable[..., Any]], Any]:
    settings = dict(field.metadata)
    name = settings.pop("name") or f"--{field.name.replace('_', '-')}"
    annotation = str(field.type).removesuffix(" | None")
    if annotation == "bool":
        return click.option(*name.split(), field.name, is_flag=True, help=settings["help"])
    if settings["type"] is None:
        settings["type"] = _TYPES.get(annotation)
        settings["multiple"] = annotation.startswith("tuple") and "callback" not in settings
    if settings["default"] is None:
        del settings["default"]
    return click.option(*name.split(), field.name, **settings)


def parse_options(texts: Iterable[str]) -> dict[str, str]:
    """Parse `--option NAME=VALUE` values by name; INVALID_INPUT for another form."""
    found = [text.partition("=") for text in texts]
    if wrong := next((name for name, separator, _value in found if not separator), None):
        raise MlctlError(ErrorCode.INVALID_INPUT, f"--option {wrong}: write it as NAME=VALUE")
    return {name: value for name, _separator, value in found}
