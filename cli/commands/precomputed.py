"""`mlctl precomputed`: precomputed predictions and their generations."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from mlctl.cli.output import CommandOutput, reporting

if TYPE_CHECKING:
    from mlctl.services.precomputed.base import StoredGeneration


@click.group()
def precomputed() -> None:
    """Show and switch precomputed predictions.

    A server with MLCTL_PRECOMPUTED=NAME uses them.
    `mlctl batch run ... --out precomputed://NAME` writes a new generation of them. They are stored
    at MLCTL_PRECOMPUTED_STORE (default: $MLCTL_HOME/precomputed).
    """


@precomputed.command("list")
@reporting
def list_(output: CommandOutput) -> None:
    """List all precomputed predictions."""
    from mlctl.services.precomputed import manage

    found = {name: manage.generations(name) for name in manage.names()}
    if output.as_json:
        output.document({name: [_document(each) for each in found[name]] for name in found})
    elif found:
        live = {name: [each for each in found[name] if each.live] for name in found}
        rows = [(name, _digests(live[name]), f"{_rows(live[name]):,}") for name in found]
        output.table(("NAME", "LIVE DIGESTS", "LIVE ROWS>"), rows)
    else:
        output.note(
            "No precomputed predictions. Write some with "
            "`mlctl batch run BENTO --in ROWS --out precomputed://NAME`."
        )


@precomputed.command()
@click.argument("name")
@reporting
def show(output: CommandOutput, name: str) -> None:
    """Show the generations of NAME: for each model's digest the live and the previous one."""
    from mlctl.rollout.client.rendering import local_time
    from mlctl.services.precomputed import manage

    found = manage.generations(name)
    if output.as_json:
        output.document([_document(each) for each in found])
        return
    rows = [
        (str(g.number), _state(g), g.digest[:12], f"{g.rows:,}", local_time(g.made_at))
        for g in found
    ]
    output.table(("GENERATION", "STATE", "DIGEST", "ROWS>", "CREATED"), rows)


@precomputed.command()
@click.argument("name")
@click.argument("generation", type=click.IntRange(1))
@reporting
def flip(output: CommandOutput, name: str, generation: int) -> None:
    """Make a complete GENERATION of NAME the live one of its model, immediately."""
    from mlctl.core.clock import SystemClock
    from mlctl.services.precomputed import manage

    _print_live(output, name, manage.flip(name, generation, SystemClock().wall()))


@precomputed.command()
@click.argument("name")
@click.option(
    "--digest", help="Start of the model's digest, if several models have a previous generation."
)
@reporting
def rollback(output: CommandOutput, name: str, digest: str | None) -> None:
    """Make the previous generation of NAME live again, immediately."""
    from mlctl.core.clock import SystemClock
    from mlctl.services.precomputed import manage

    _print_live(output, name, manage.rollback(name, digest, SystemClock().wall()))


def _print_live(output: CommandOutput, name: str, generation: StoredGeneration) -> None:
    if output.as_json:
        output.document(_document(generation))
    else:
        digest = generation.digest[:12]
        output.line(f"{name}: generation {generation.number} is live for {digest}")


def _document(generation: StoredGeneration) -> dict[str, Any]:
    return {**asdict(generation), "state": _state(generation)}


def _state(generation: StoredGeneration) -> str:
    if generation.live:
        return "live"
    if generation.previous:
        return "previous"
    return "complete" if generation.sealed else "being written"


def _digests(generations: list[StoredGeneration]) -> str:
    return ", ".join(each.digest[:12] for each in generations)


def _rows(generations: list[StoredGeneration]) -> int:
    return sum(each.rows for each in generations)
