"""The `mlctl` command: its groups of commands in the order in which a model walks through them."""

from __future__ import annotations

import gc

import click

from bundle import __version__
from cli.commands.batch import batch
from cli.commands.bench import bench
from cli.commands.build import build
from cli.commands.client import client
from cli.commands.containerize import containerize
from cli.commands.demo import demo
from cli.commands.doctor import doctor
from cli.commands.down import down
from cli.commands.gate import gate
from cli.commands.history import history
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
from cli.commands.sign import sign
from cli.commands.status import status
from cli.commands.stream import stream
from cli.commands.up import up
from cli.commands.verify import verify
from cli.commands.why import why

COMMANDS = (
    doctor, demo, models, optimize, pull, build, sign, verify, serve, containerize, sbom, client,
    manifests, batch, stream, precomputed, bench, parity, up, scale, promote, pause, resume,
    rollback, status, ps, logs, history, why, gate, down,
)  # fmt: skip


class OrderedGroup(click.Group):
    """A group whose help keeps the order in which its commands were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)


@click.group(cls=OrderedGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mlctl")
def cli() -> None:
    """Take a model from the MLflow registry to traffic in production, with proof at each step.

    A model walks through optimize, build, up and promote. State is kept under
    $MLCTL_HOME; every command has --json, and exits with the codes of docs/errors.md.
    """


for _command in COMMANDS:
    cli.add_command(_command)


def main() -> None:
    """The entry point of the `mlctl` script."""
    # Most of what a command allocates are modules that live until its end: looking at them
    # again and again while they are imported, and once more at exit, takes seconds.
    gc.set_threshold(50_000, 20, 100)
    try:
        cli(standalone_mode=True)
    finally:
        gc.freeze()


if __name__ == "__main__":
    main()
