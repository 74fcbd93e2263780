"""What the examples share: register a trained model, optimize it, and say what comes next."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np


def example(
    name: str, train: Callable[[Path], Path], *commands: str, transform: Path | None = None
) -> click.Command:
    """Return the command of an example: train, register and optimize the model `name`.

    `train` registers a version, writes its files to a folder and returns that of the evaluation
    rows. `commands` are printed as what comes next, with the folder for {data}.
    """

    @click.command(help="Train, register and optimize the model; print what comes next.")
    @click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path(f"{name}-data"),
        show_default=True,
        help="Folder for the rows.",
    )
    def main(data: Path) -> None:
        data.mkdir(parents=True, exist_ok=True)
        optimize(name, train(data), transform)
        click.echo("Next:")
        for command in commands:
            click.echo(command.replace("{data}", str(data)))

    return main


def register(flavor: str, model: Any, name: str, **options: Any) -> None:
    """Log `model` with `mlflow.FLAVOR.log_model`, and register it as NAME@candidate."""
    import mlflow

    from mlctl.core.quiet import quiet
    from mlctl.registry.tracking import configure_tracking

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
    mlflow.MlflowClient().set_registered_model_alias(name, "candidate", version)


def fit_classifier(net: Any, inputs: np.ndarray, labels: np.ndarray, epochs: int) -> Any:
    """Train a torch module that returns logits, with the same steps each time; return it."""
    import torch

    rows, targets = torch.from_numpy(inputs), torch.from_numpy(labels)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(epochs):
        for part in torch.split(torch.randperm(len(rows)), 50):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(rows[part]), targets[part])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return net.eval()


def register_classifier(net: Any, name: str, inputs: Mapping[str, np.ndarray]) -> None:
    """Register a torch module that turns rows as in `inputs`, one array FP32, into `logits`."""
    import torch
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    ((input_name, rows),) = inputs.items()
    with torch.no_grad():
        logits = net(torch.from_numpy(rows[:2])).numpy()
    inner, outer = (
        Schema([TensorSpec(array.dtype, (-1, *array.shape[1:]), tensor)])
        for tensor, array in ((input_name, rows), ("logits", logits))
    )
    register(
        "pytorch",
        net,
        name,
        signature=ModelSignature(inner, outer),
        input_example=rows[:2],
        serialization_format="pt2",
    )


def signature_of(rows: Any, answers: Any) -> Any:
    """Return MLflow's signature of a table; columns with a missing value in `rows` are optional."""
    from mlflow.models import infer_signature

    from mlctl.core.quiet import quiet

    with quiet():  # it advises against integer columns
        return infer_signature(rows, answers)


def optimize(name: str, data: Path, transform: Path | None = None) -> None:
    """Do what `mlctl optimize NAME@candidate --data DATA` does, with fp32 and dynamic int8."""
    from mlctl.optimize.inputs.prepare import OptimizeOptions
    from mlctl.optimize.pipeline import optimize as run
    from mlctl.optimize.recipes.base import Target
    from mlctl.optimize.recipes.discovery import select
    from mlctl.registry.mlflow_catalog import MlflowCatalog

    click.echo(f"Optimizing {name}@candidate ...")
    result = run(
        f"{name}@candidate",
        data,
        catalog=MlflowCatalog(),
        options=OptimizeOptions(transform=transform),
        recipes=select(["fp32", "int8-dynamic"], Target.CPU),
    )
    click.echo(f"{result.published.uri}: {result.chosen.variant.recipe}")
