"""The `mlctl` command, with its commands in the order in which a model goes through them."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from mlctl import __version__
from mlctl.cli.config_file import CONFIG_NAME, read_config
from mlctl.cli.options import CONTEXT_SETTINGS
from mlctl.cli.output import CommandOutput, ReportingGroup
from mlctl.core.errors import MlctlError
from mlctl.core.garbage import rare_collection
from mlctl.optimize.supervision import run_in_child

# Each name is that of the module in `mlctl.cli.commands` too, and of the command in it.
SECTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Start here": ("doctor", "demo", "init", "choose", "config", "cache", "completion"),
        "Models and Bentos": ("models", "show", "optimize", "build", "pull", "sign", "verify"),
        "Serve and score": (
            "serve", "batch", "stream", "precomputed", "client", "bench", "parity",
        ),
        "Deployments and rollouts": (
            "up", "scale", "split", "promote", "feedback", "pause", "resume", "rollback", "status",
            "ui", "ps", "logs", "events", "history", "down",
        ),
        "Containers and clusters": ("containerize", "sbom", "manifests", "gate"),
    }
)  # fmt: skip
COMMANDS = tuple(name for names in SECTIONS.values() for name in names)


class LazyCommands(Mapping[str, click.Command]):
    """All commands by name, each imported when it is looked up.

    Importing all of them takes longer than most of them run.
    """

    def __getitem__(self, name: str) -> click.Command:
        if name not in COMMANDS:
            raise KeyError(name)
        command: click.Command = getattr(import_module(f"mlctl.cli.commands.{name}"), name)
        return command

    def __contains__(self, name: object) -> bool:
        return name in COMMANDS

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class Mlctl(ReportingGroup):
    """The group of all commands, with help in sections."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = LazyCommands()  # type: ignore[assignment] # click only reads it

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name, self.commands[name].get_short_help_str(66)) for name in names], 13, 2
                )


@click.group(cls=Mlctl, context_settings=CONTEXT_SETTINGS)
@click.version_option(__version__, prog_name="mlctl")
@click.pass_context
def cli(context: click.Context) -> None:
    """Take a model from the MLflow registry to traffic in production, with proof at each step.

    The chain is optimize, build, up, promote; `mlctl demo` shows it in a few minutes, and `mlctl
    init` starts a project. State is kept under $MLCTL_HOME. Every command has --json and uses the
    exit codes of docs/errors.md. mlctl.toml in the current folder has defaults; `mlctl config
    explain` shows them.
    """
    file = read_config(Path(CONFIG_NAME), cli)
    if file is not None:
        context.obj = file
        context.default_map = dict(file.options)
        for name, value in file.environment.items():
            os.environ.setdefault(name, value)


def _continue_in_child() -> None:
    """Return in a child process, whose crashes this process survives and reports."""
    output = CommandOutput(as_json="--json" in sys.argv)
    try:
        run_in_child(output.note)
    except MlctlError as error:
        output.restore_terminal()
        with contextlib.suppress(click.exceptions.Exit):
            output.fail(error)
        sys.exit(error.spec.exit_code)


def main() -> None:
    """The entry point of the `mlctl` script."""
    with rare_collection():
        if sys.argv[1:2] == ["optimize"]:
            _continue_in_child()
        cli(standalone_mode=True)


if __name__ == "__main__":
    main()
