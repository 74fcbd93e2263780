"""`mlctl pull`: a verified bundle out of the registry."""

from __future__ import annotations

from pathlib import Path

import click

from bundle.errors import ErrorCode, MlctlError
from cli.output import Output, reporting


@click.command()
@click.argument("model")
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory to write; it must not exist yet, or be empty.",
)
@reporting
def pull(output: Output, model: str, out: Path) -> None:
    """Fetch the bundle of an optimized MODEL and verify it.

    MODEL is a name (its newest optimized version), NAME@ALIAS or NAME/VERSION of the
    source model, or NAME-optimized/VERSION. A bundle in ./model is what plain
    `bentoml serve` and `bentoml build` use at the root of the repository.
    """
    from registry.mlflow_catalog import MlflowCatalog

    target = out.absolute()
    if target == Path.cwd() or (target.exists() and any(target.iterdir())):
        why = "is the current directory" if target == Path.cwd() else "is not empty"
        raise MlctlError(ErrorCode.INVALID_INPUT, f"{out} {why}", "Name another directory.")
    catalog = MlflowCatalog()
    published = catalog.find_optimized(model)
    bundle = catalog.fetch_bundle(published, out)
    if output.as_json:
        output.document({"path": str(out), "digest": bundle.digest, "model": published.uri})
    else:
        output.line(f"{published.uri} is in {out}, digest {bundle.digest}")
