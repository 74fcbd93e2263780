"""What the examples share: register a trained model, and optimize it on its evaluation rows."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from optimize.pipeline import OptimizeResult


def register(flavor: str, model: Any, name: str, alias: str = "candidate", **options: Any) -> str:
    """Log `model` with `mlflow.FLAVOR.log_model`, register it with an alias; return its version."""
    import mlflow

    from registry.quiet import quiet
    from registry.tracking import configure_tracking

    configure_tracking()
    with quiet(), mlflow.start_run(run_name=f"train-{name}"):
        logged = importlib.import_module(f"mlflow.{flavor}").log_model(
            model,
            name="model",
            pip_requirements=[flavor],
            registered_model_name=name,
            **options,
        )
    version = str(logged.registered_model_version)
    mlflow.MlflowClient().set_registered_model_alias(name, alias, version)
    return version


def signature_of(rows: Any, answers: Any) -> Any:
    """Return MLflow's signature of a table; columns with a missing value in `rows` are optional."""
    from mlflow.models import infer_signature

    from registry.quiet import quiet

    with quiet():  # it advises against integer columns
        return infer_signature(rows, answers)


def optimize(name: str, data: Path, transform: Path | None = None) -> OptimizeResult:
    """Do what `mlctl optimize NAME@candidate --data DATA` does, with fp32 and dynamic int8."""
    from optimize.pipeline import optimize as run
    from optimize.prepare import OptimizeOptions
    from optimize.recipes.base import Target
    from optimize.recipes.discovery import select
    from registry.mlflow_catalog import MlflowCatalog

    click.echo(f"Optimizing {name}@candidate ...")
    result = run(
        f"{name}@candidate",
        data,
        catalog=MlflowCatalog(),
        options=OptimizeOptions(transform=transform),
        recipes=select(["fp32", "int8-dynamic"], Target.CPU),
    )
    click.echo(f"{result.published.uri}: {result.chosen.variant.recipe}")
    return result
