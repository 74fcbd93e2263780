"""`mlctl sbom`: what is in a Bento, as a CycloneDX document."""

from __future__ import annotations

from pathlib import Path

import click

from mlctl.cli.image_options import EXTRAS_OPTION, LOCK_OPTION, PLATFORM_OPTION
from mlctl.cli.options import OUTPUT_FILE
from mlctl.cli.output import CommandOutput, reporting


@click.command()
@click.argument("bento")
@click.option("--out", "file", type=OUTPUT_FILE, help="File to write.  [default: stdout]")
@EXTRAS_OPTION
@PLATFORM_OPTION
@LOCK_OPTION
@reporting
def sbom(
    output: CommandOutput,
    bento: str,
    file: Path | None,
    extras: tuple[str, ...],
    platform: str,
    lock: Path | None,
) -> None:
    """List the packages and models of BENTO as CycloneDX 1.6.

    With versions, hashes and licences.

    BENTO is NAME:VERSION, or NAME for the newest. The hashes of its packages come from the
    package index that pip uses.
    """
    from mlctl.bento.containers.lock import Platform
    from mlctl.bento.containers.resolve import lock_for
    from mlctl.bento.containers.sbom import sbom_of
    from mlctl.core.files import write_atomic
    from mlctl.services.layout.bento_layout import read_contents
    from mlctl.services.layout.bento_store import find_bento

    found = find_bento(bento)
    target = Platform.of(platform)
    if lock is None:
        output.note("Finding the hashes of the packages ...")
    locked = lock_for(found, target, lock, extras)
    document = sbom_of(found, read_contents(found.source), locked, target)
    if file is None:
        click.echo(document, nl=False)
        return
    write_atomic(file.absolute(), document)
    output.result(
        {"bento": found.tag, "path": str(file), "packages": len(locked.packages)},
        f"{found.tag}: {len(locked.packages)} packages listed in {file}",
    )
