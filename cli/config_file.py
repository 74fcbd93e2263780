"""`mlctl.toml` in the current folder: defaults of options and of environment variables.

A table has the name of a command and its options without the dashes; `[environment]` has variables
of mlctl. Options that are given and variables that are set win.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from mlctl.core.variables import PREFIX

CONFIG_NAME = "mlctl.toml"
_ENVIRONMENT = "environment"
# Variables of other programs that mlctl reads.
_FOREIGN = frozenset({"BENTOML_HOME", "MLFLOW_TRACKING_URI"})


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What the file says: `options` by command and parameter, as `click.Context.default_map`."""

    path: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def read_config(path: Path, root: click.Group) -> ConfigFile | None:
    """Read the file; None if there is none. click.UsageError names what is wrong in it."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise click.UsageError(f"{path.name} cannot be read: {reason}") from error
    environment = document.pop(_ENVIRONMENT, {})
    if not isinstance(environment, dict):
        raise click.UsageError(f"{path.name}: [{_ENVIRONMENT}] is not a table")
    for name in environment:
        if not name.startswith(PREFIX) and name not in _FOREIGN:
            raise click.UsageError(
                f"{path.name}: [{_ENVIRONMENT}] has {name}; it may have {PREFIX}* variables, "
                f"{' and '.join(sorted(_FOREIGN))}"
            )
    variables = {name: _variable(value) for name, value in environment.items()}
    return ConfigFile(path, _options(document, root, path.name), variables)


def given_options(
    options: Mapping[str, Any], root: click.Group
) -> Iterator[tuple[str, str, object]]:
    """Yield the command, the option and the value of each default that a file sets."""
    for name, values in options.items():
        command = root.commands[name]
        if isinstance(command, click.Group):
            for below, option, value in given_options(values, command):
                yield f"{name} {below}", option, value
        else:
            for parameter in command.params:
                if parameter.name in values:
                    yield name, parameter.opts[0], values[parameter.name]


def _options(document: Mapping[str, Any], group: click.Group, where: str) -> dict[str, Any]:
    found = {}
    for name, table in document.items():
        command = group.commands.get(name)
        if command is None:
            raise _unknown(where, f"[{name}]", "a command", name, group.commands)
        if not isinstance(table, dict):
            raise click.UsageError(f"{where}: {name} is not a table")
        if isinstance(command, click.Group):
            found[name] = _options(table, command, f"{where}: [{name}]")
            continue
        known = {
            text.removeprefix("--"): parameter
            for parameter in command.params
            if isinstance(parameter, click.Option)
            for text in (*parameter.opts, *parameter.secondary_opts)
        }
        for option, value in table.items():
            if option not in known:
                raise _unknown(f"{where}: [{name}]", option, "an option", option, known)
            _check(known[option], value, command, f"{where}: [{name}]: {option}")
        found[name] = {known[option].name: value for option, value in table.items()}
    return found


def _check(option: click.Option, value: object, command: click.Command, where: str) -> None:
    """click.UsageError if the option does not accept `value`. Paths may be created later."""
    if isinstance(value, dict) or (isinstance(value, list) and not option.multiple):
        raise click.UsageError(f"{where} has one value, not several")
    if isinstance(option.type, click.Path):
        return
    try:
        option.type_cast_value(click.Context(command), value)
    except click.BadParameter as error:
        raise click.UsageError(f"{where}: {error.message}") from error


def _unknown(where: str, what: str, kind: str, name: str, known: Iterable[str]) -> click.UsageError:
    near = difflib.get_close_matches(name, list(known), n=1)
    suggestion = f"; did you mean {near[0]}?" if near else ""
    return click.UsageError(f"{where}: {what} is not {kind} of mlctl{suggestion}")


def _variable(value: object) -> str:
    """Return a value as a variable has it; TOML's true is 1."""
    return str(int(value)) if isinstance(value, bool) else str(value)
