"""`mlctl build`: from an optimized model to a Bento."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from cli.output import Output, reporting


@click.command()
@click.argument("model")
@click.option("--force", is_flag=True, help="Build again even if the store has this bundle.")
@reporting
def build(output: Output, model: str, force: bool) -> None:
    """Build a Bento from an optimized MODEL.

    MODEL is a name (its newest optimized version), NAME@ALIAS or NAME/VERSION of the
    source model, or NAME-optimized/VERSION. The Bento's version is the start of the
    bundle's digest, so the same bundle always has the same tag.
    """
    from registry.mlflow_catalog import MlflowCatalog
    from services.packaging import build_bento

    catalog = MlflowCatalog()
    published = catalog.find_optimized(model)
    with tempfile.TemporaryDirectory(prefix="mlctl-build-") as folder:
        bundle = catalog.fetch_bundle(published, Path(folder) / "bundle")
        labels = {
            "mlctl.digest": bundle.digest,
            "mlctl.model": published.name,
            "mlctl.version": published.version,
            "mlctl.source": published.source_uri,
        }
        output.note(f"Building a Bento from {published.uri} ...")
        built = build_bento(bundle, labels, force=force)
    if output.as_json:
        output.document(
            {
                "tag": built.tag,
                "digest": built.digest,
                "path": str(built.path),
                "bundle": str(built.path / "src" / "model"),
                "reused": built.reused,
                "model": published.uri,
            }
        )
    else:
        done = "is in the store already" if built.reused else "built"
        output.line(f"{built.tag} {done}: {published.uri}, digest {built.digest}")
        output.note(f"Serve it: mlctl serve {built.tag}    Deploy it: mlctl up NAME {built.tag}")
