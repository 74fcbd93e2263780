"""`mlctl build`: from optimized models to a Bento."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from mlctl.cli.output import CommandOutput, reporting

if TYPE_CHECKING:
    from mlctl.bento.packaging import BuiltBento
    from mlctl.bento.registered import PackedModel
    from mlctl.bento.transfer.push import Pushed
    from mlctl.registry.catalog import Selection


@click.command()
@click.argument("models", nargs=-1, required=True)
@click.option(
    "--version",
    metavar="N",
    help="Version of MODEL-optimized.  [default: the newest]",
)
@click.option("--name", help="Name of the Bento; required for several models.")
@click.option(
    "--connect",
    "maps",
    multiple=True,
    metavar="B.INPUT=A.OUTPUT",
    help="Output of a pipeline stage that feeds an input; repeatable.  [default: outputs feed "
    "inputs of the same name]",
)
@click.option(
    "--runtime",
    "flavour",
    type=click.Choice(["cpu", "gpu", "trt"]),
    help="Runtime packages of the Bento.  [default: the runtime that is installed here]",
)
@click.option(
    "--push",
    metavar="DESTINATION",
    help="Also push the Bento to the OCI image layout oci:FOLDER, or to mlflow.",
)
@click.option("--force", is_flag=True, help="Build again and replace the Bento in the store.")
@reporting
def build(
    output: CommandOutput,
    models: tuple[str, ...],
    version: str | None,
    name: str | None,
    maps: tuple[str, ...],
    flavour: str | None,
    push: str | None,
    force: bool,
) -> None:
    """Build a Bento from optimized MODELS; /predict uses the first one.

    A model is a name (its newest optimized version), NAME@ALIAS or NAME/VERSION of the
    source model, or NAME-optimized/VERSION; --version chooses an optimized version of NAME. The
    command prints which version it takes, and why. The Bento's version is the start of the
    bundle's digest, so the same bundles always get the same tag.

    A+B is a pipeline, served as one more model under the Bento's name: outputs of A feed
    inputs of B.
    """
    from mlctl.bento.registered import build_registered, runtime_hint, select, split_stages
    from mlctl.bento.transfer.push import parse_target
    from mlctl.bento.transfer.push import push as push_bento
    from mlctl.registry.mlflow_catalog import MlflowCatalog
    from mlctl.services.model.requirements import RuntimeFlavor

    target = None if push is None else parse_target(push)
    catalog = MlflowCatalog()
    stages, mapped = split_stages(models, maps)
    selected = select(catalog, stages, version)
    published = [each.published for each in selected]
    uris = ", ".join(each.uri for each in published)
    for each in selected:
        output.note(f"{each.published.uri}: {each.why}")
    output.note(f"Building a Bento from {uris} ...")
    flavor = None if flavour is None else RuntimeFlavor(flavour)
    made, parts = build_registered(catalog, published, name, flavor, force=force, maps=mapped)
    pushed = None if target is None else push_bento(target, made.tag, catalog, published[0])
    if hint := runtime_hint(parts, flavor):
        output.note(hint)
    if output.as_json:
        output.document(_document(made, parts, selected, pushed))
        return
    done = "is in the store already" if made.reused else "built"
    output.line(f"{made.tag} {done}: {uris}, digest {made.digest}")
    if pushed is not None:
        output.line(f"Pushed: {pushed.reference}, archive digest {pushed.archive_digest}")
    output.note(f"Serve it: mlctl serve {made.tag}    Deploy it: mlctl up NAME {made.tag}")


def _document(
    made: BuiltBento,
    parts: Sequence[PackedModel],
    selected: Sequence[Selection],
    pushed: Pushed | None,
) -> dict[str, Any]:
    return {
        "tag": made.tag,
        "digest": made.digest,
        "content_digest": made.content_digest,
        "path": str(made.path),
        "reused": made.reused,
        "bundle": parts[0].bundle,
        "model": selected[0].published.uri,
        "models": [asdict(each) for each in parts],
        "reasons": {each.published.uri: each.why for each in selected},
        "pushed": None if pushed is None else asdict(pushed),
    }
