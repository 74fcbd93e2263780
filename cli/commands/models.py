"""`mlctl models`: the models in the registry."""

from __future__ import annotations

from dataclasses import asdict

import click

from cli.output import CommandOutput, reporting


@click.command()
@reporting
def models(output: CommandOutput) -> None:
    """List the registered models, their aliases and sources."""
    from registry.mlflow_catalog import MlflowCatalog
    from registry.tracking import TRACKING_VARIABLE, registry_address

    rows = MlflowCatalog().list_models()
    if output.as_json:
        output.document({"models": [asdict(row) for row in rows]})
    elif not rows:
        output.note(
            f"The registry {registry_address()} has no models. Log one there with MLflow, set "
            f"{TRACKING_VARIABLE} to another registry, or try `mlctl demo`."
        )
    else:
        output.table(
            ("Model", "Version>", "Aliases", "Digest", "Optimized from"),
            (
                (
                    row.name,
                    row.version,
                    " ".join(f"@{alias}" for alias in row.aliases),
                    (row.digest or "")[:12],
                    row.source_uri or "",
                )
                for row in rows
            ),
        )
