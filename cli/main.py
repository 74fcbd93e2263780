"""The `mlctl` command, with its commands in the order in which a model goes through them."""

from __future__ import annotations

import os
from pathlib import Path

import click

from bundle import __version__
from bundle.garbage import rare_collection
from cli.commands.batch import batch
from cli.commands.bench import bench
from cli.commands.build import build
from cli.commands.cache import cache
from cli.commands.choose import choose
from cli.commands.client import client
from cli.commands.completion import completion
from cli.commands.config import config
from cli.commands.containerize import containerize
from cli.commands.demo import demo
from cli.commands.doctor import doctor
from cli.commands.down import down
from cli.commands.events import events
from cli.commands.feedback import feedback
from cli.commands.gate import gate
from cli.commands.history import history
from cli.commands.init import init
from cli.commands.logs import logs
from cli.commands.manifests import manifests
from cli.commands.models import models
from cli.commands.optimize import optimize
from cli.commands.parity import parity
from cli.commands.pause import pause
from cli.commands.precomputed import precomputed
from cli.commands.promote import promote
from cli.commands.ps import ps
from cli.commands.pull import pull
from cli.commands.resume import resume
from cli.commands.rollback import rollback
from cli.commands.sbom import sbom
from cli.commands.scale import scale
from cli.commands.serve import serve
from cli.commands.show import show
from cli.commands.sign import sign
from cli.commands.split import split
from cli.commands.status import status
from cli.commands.stream import stream
from cli.commands.ui import ui
from cli.commands.up import up
from cli.commands.verify import verify
from cli.config_file import CONFIG_NAME, read_config
from cli.options import CONTEXT_SETTINGS
from cli.output import ReportingGroup

SECTIONS = {
    "Start here": (doctor, demo, init, choose, config, cache, completion),
    "Models and Bentos": (models, show, optimize, build, pull, sign, verify),
    "Serve and score": (serve, batch, stream, precomputed, client, bench, parity),
    "Deployments and rollouts": (
        up, scale, split, promote, feedback, pause, resume, rollback, status, ui, ps, logs, events,
        history, down,
    ),
    "Containers and clusters": (containerize, sbom, manifests, gate),
}  # fmt: skip
COMMANDS = tuple(command for commands in SECTIONS.values() for command in commands)


class Mlctl(ReportingGroup):
    """The group of all commands, with help in sections."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(str(each.name), each.get_short_help_str(66)) for each in commands], 13, 2
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


for _command in COMMANDS:
    cli.add_command(_command)


def main() -> None:
    """The entry point of the `mlctl` script."""
    with rare_collection():
        cli(standalone_mode=True)


if __name__ == "__main__":
    main()
