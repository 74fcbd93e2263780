"""`mlctl config`: which settings are in force, and where they come from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import click

from mlctl.cli.config_file import CONFIG_NAME, ConfigFile, given_options
from mlctl.cli.output import CommandOutput, reporting


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One variable in force; `source` is "environment", "mlctl.toml" or "default"."""

    name: str
    value: str
    source: str


@click.group()
def config() -> None:
    """Show which settings are in force.

    mlctl.toml in the current folder has defaults: a table for each command with its options, and
    [environment] with variables. Options that are given and variables that are set win.
    """


@config.command()
@reporting
def explain(output: CommandOutput) -> None:
    """List the settings in force and where each comes from.

    They are those of servers and runners, and the options of mlctl.toml. Passwords
    and tokens are not shown.
    """
    root = click.get_current_context().find_root()
    file: ConfigFile | None = root.obj
    settings = list(_settings(file))
    options = [] if file is None else list(given_options(file.options, _group(root)))
    if output.as_json:
        output.document(
            {
                "file": None if file is None else str(file.path.resolve()),
                "settings": [asdict(each) for each in settings],
                "options": [
                    {"command": command, "option": option, "value": value}
                    for command, option, value in options
                ],
            }
        )
        return
    rows = [(each.name, each.value, each.source) for each in settings]
    output.table(("Setting", "Value", "From"), rows)
    if options:
        output.line("")
        texts = [(f"mlctl {command}", option, str(value)) for command, option, value in options]
        output.table(("Command", "Option", "Default in mlctl.toml"), texts)
    if file is None:
        output.note(f"There is no {CONFIG_NAME} in this folder.")


def _group(root: click.Context) -> click.Group:
    assert isinstance(root.command, click.Group)
    return root.command


def _settings(file: ConfigFile | None) -> Iterator[ConfigEntry]:
    from mlctl.core.variables import PREFIX, shown_value
    from mlctl.services.online.settings import ServerSettings

    defaults = {
        PREFIX + name.upper(): info.get_default(call_default_factory=True)
        for name, info in ServerSettings.model_fields.items()
    }
    written = {} if file is None else file.environment
    set_here = {name for name in os.environ if name.startswith(PREFIX)}
    for name in sorted({*defaults, *written, *set_here}):
        value = os.environ.get(name)
        if value is None:
            default = defaults[name]
            yield ConfigEntry(name, "unset" if default in (None, ()) else str(default), "default")
        else:
            from_file = name in written and written[name] == value
            yield ConfigEntry(
                name, shown_value(name, value), CONFIG_NAME if from_file else "environment"
            )
