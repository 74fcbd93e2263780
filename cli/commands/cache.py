"""`mlctl cache`: what mlctl keeps to be faster, and how to remove it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from mlctl.cli.options import Duration
from mlctl.cli.output import CommandOutput, reporting

if TYPE_CHECKING:
    from mlctl.doctor.caches import CacheSize


@click.group()
def cache() -> None:
    """Show and prune the caches under $MLCTL_HOME/cache.

    Every entry can be made again; removing one costs only the time that it saved.
    """


@cache.command("list")
@reporting
def list_(output: CommandOutput) -> None:
    """List the caches with their sizes."""
    from mlctl.doctor.caches import cache_sizes

    _show(output, cache_sizes())


@cache.command()
@click.option(
    "--unused",
    "unused_seconds",
    type=Duration(),
    default="30d",
    help="Remove entries that were not used for this long; 0 removes all.",
)
@reporting
def prune(output: CommandOutput, unused_seconds: float) -> None:
    """Remove entries that were not used for a while."""
    from mlctl.core.clock import SystemClock
    from mlctl.doctor.caches import prune as prune_caches

    removed = prune_caches(unused_seconds, SystemClock().wall())
    _show(output, removed)
    freed = sum(each.size_bytes for each in removed)
    output.note(f"{freed / 1e6:,.1f} MB removed")


def _show(output: CommandOutput, caches: tuple[CacheSize, ...]) -> None:
    if output.as_json:
        output.document({"caches": [asdict(each) for each in caches]})
        return
    rows = [
        (each.name, f"{each.entries:,}", f"{each.size_bytes / 1e6:,.1f}", each.content)
        for each in caches
    ]
    output.table(("Cache", "Entries>", "MB>", "Content"), rows)
