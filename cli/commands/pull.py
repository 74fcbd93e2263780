"""`mlctl pull`: fetch a bundle from the registry, or a Bento that was pushed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlctl.cli.options import OUTPUT_FOLDER
from mlctl.cli.output import CommandOutput, reporting
from mlctl.core.errors import ErrorCode, MlctlError

if TYPE_CHECKING:
    from mlctl.bento.transfer.push import TransferTarget


@click.command()
@click.argument("reference", metavar="MODEL|BENTO")
@click.option(
    "--out",
    type=OUTPUT_FOLDER,
    help="Folder for the bundle of MODEL; it must be empty or not exist.",
)
@click.option(
    "--force", is_flag=True, help="Replace a different Bento with the same tag in the store."
)
@reporting
def pull(output: CommandOutput, reference: str, out: Path | None, force: bool) -> None:
    """Fetch and verify an optimized MODEL, or a pushed BENTO.

    MODEL is a name (its newest optimized version), NAME@ALIAS or NAME/VERSION of the
    source model, or NAME-optimized/VERSION. Plain `bentoml serve` and `bentoml build` use a
    bundle in ./model at the root of the repository.

    BENTO is oci:FOLDER (#NAME:VERSION for one of several) or mlflow:MODEL (#VERSION), as
    `mlctl build --push` prints it; it is added to the Bento store.
    """
    from mlctl.bento.transfer.push import parse_source

    source = parse_source(reference)
    if source is not None:
        _pull_bento(output, source, out, force=force)
    elif force:
        raise click.UsageError("--force is for a BENTO")
    elif out is None:
        raise click.UsageError("Missing option '--out': the folder for the bundle.")
    else:
        _pull_bundle(output, reference, out)


def _pull_bento(
    output: CommandOutput, source: TransferTarget, out: Path | None, *, force: bool
) -> None:
    from mlctl.bento.transfer.archive import list_files
    from mlctl.bento.transfer.push import pull as pull_bento

    if out is not None:
        raise click.UsageError("--out is for a bundle: a Bento is put into the store")
    bento = pull_bento(source, force=force)
    listing = list_files(bento)
    digest, archive_digest = listing.digest, listing.archive_digest
    if output.as_json:
        document = {"tag": bento.tag, "digest": digest, "archive_digest": archive_digest}
        output.document({**document, "path": str(bento.path)})
    else:
        output.line(
            f"{bento.tag} is in the store, digest {digest}, archive digest {archive_digest}"
        )


def _pull_bundle(output: CommandOutput, model: str, out: Path) -> None:
    from mlctl.registry.mlflow_catalog import MlflowCatalog

    target = out.absolute()
    if target == Path.cwd() or (target.exists() and any(target.iterdir())):
        why = "is the current directory" if target == Path.cwd() else "is not empty"
        raise MlctlError(ErrorCode.INVALID_INPUT, f"{out} {why}", "Name another directory.")
    catalog = MlflowCatalog()
    published = catalog.find_optimized(model)
    bundle = catalog.fetch_bundle(published, out)
    output.result(
        {"path": str(out), "digest": bundle.digest, "model": published.uri},
        f"{published.uri} is in {out}, digest {bundle.digest}",
    )
