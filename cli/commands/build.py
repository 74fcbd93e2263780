"""`mlctl build`: from optimized models to a Bento."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from cli.output import Output, reporting
from cli.shipping import push as push_to


@click.command()
@click.argument("models", nargs=-1, required=True)
@click.option("--name", help="Name of the Bento; several models need it.")
@click.option(
    "--flavour",
    type=click.Choice(["cpu", "gpu", "trt"]),
    help="Which runtime it needs; without it the one that is installed here.",
)
@click.option(
    "--push", metavar="TARGET", help="Send it on as well: to a FOLDER, to mlflow, or to oci:PATH."
)
@click.option("--force", is_flag=True, help="Build again even if the store has it.")
@reporting
def build(
    output: Output,
    models: tuple[str, ...],
    name: str | None,
    flavour: str | None,
    push: str | None,
    force: bool,
) -> None:
    """Build a Bento from optimized MODELS; the first is the one that /predict asks.

    A model is a name (its newest optimized version), NAME@ALIAS or NAME/VERSION of the
    source model, or NAME-optimized/VERSION. The Bento's version is the start of the
    bundle's digest, so the same bundle always has the same tag; several have one that
    stands for all of them.
    """
    from registry.mlflow_catalog import MlflowCatalog
    from services.layout import pack
    from services.packaging import build_bento
    from services.requirements import Flavour
    from services.ship.push import parse_target

    target = None if push is None else parse_target(push)
    catalog = MlflowCatalog()
    published = [catalog.find_optimized(model) for model in models]
    with tempfile.TemporaryDirectory(prefix="mlctl-build-") as folder:
        bundles = [
            catalog.fetch_bundle(each, Path(folder) / f"bundle{number}")
            for number, each in enumerate(published)
        ]
        first = published[0]
        labels = {
            "mlctl.model": first.name,
            "mlctl.version": first.version,
            "mlctl.source": first.source_uri,
        }
        packed = pack(bundles, name)
        uris = ", ".join(each.uri for each in published)
        output.note(f"Building a Bento from {uris} ...")
        wanted = None if flavour is None else Flavour(flavour)
        built = build_bento(packed, labels, force=force, flavour=wanted)
    pushed = None if target is None else push_to(target, built.tag, catalog, first)
    if output.as_json:
        output.document(
            {
                "tag": built.tag,
                "digest": built.digest,
                "content_digest": built.content_digest,
                "path": str(built.path),
                "bundle": str(built.path / "src" / next(iter(packed.folders()))[0]),
                "reused": built.reused,
                "model": first.uri,
                "models": [
                    {"name": bundle.manifest.name, "digest": bundle.digest, "model": each.uri}
                    for bundle, each in zip(bundles, published, strict=True)
                ],
                "pushed": pushed,
            }
        )
    else:
        done = "is in the store already" if built.reused else "built"
        output.line(f"{built.tag} {done}: {uris}, digest {built.digest}")
        if pushed is not None:
            output.line(f"Pushed to {pushed['reference']}")
        output.note(f"Serve it: mlctl serve {built.tag}    Deploy it: mlctl up NAME {built.tag}")
