"""Small torch models, well-behaved and not, and logging them to MLflow as a user would."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from mlctl.core.quiet import quiet
from mlctl.optimize.proofs.adapter import order_outputs
from mlctl.registry.catalog import SourceModel, artifacts_sha256
from mlctl.registry.mlmodel import read_mlmodel
from mlctl.registry.tracking import configure_tracking

Format = Literal["pt2", "pickle"]

CLASSES = 4


class Cnn(nn.Module):
    """Convolution, batch norm and a linear head over [rows, 1, 8, 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(128, CLASSES),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(x)
        return out


class Branching(nn.Module):
    """Its control flow depends on the values of the input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x * 2
        return x - 1


class Looping(nn.Module):
    """A Python loop over the rows, which an exporter unrolls for one batch size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[row] * (row + 1) for row in range(x.shape[0])])


class Shifting(nn.Module):
    """Nothing wrong with it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1


class Mixing(nn.Module):
    """Every row's answer depends on all rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(dim=0, keepdim=True)


class Poisoned(nn.Module):
    """NaN for rows whose first value is below zero."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.sqrt(x[:, :1])


class Doubling(nn.Module):
    """Answers with twice as many rows as it was asked."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.repeat(2, 1)


class Linear(nn.Module):
    """Matrix products only, three dimensional as in a transformer: [rows, 6, 16]."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.second = nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(torch.relu(self.first(x)))
        return out


class TwoInputs(nn.Module):
    """Token ids and a mask in, a dictionary out."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        vectors = self.table(ids) * mask[:, :, None]
        return {"pooled": vectors.sum(dim=1), "count": mask.sum(dim=1)}


def log_torch(
    module: nn.Module,
    name: str,
    *inputs: np.ndarray,
    input_names: tuple[str, ...] = ("x",),
    output_names: tuple[str, ...] = ("logits",),
    serialization: Format = "pt2",
) -> str:
    """Log and register `module` with its signature; returns the new version's number."""
    configure_tracking()
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _log(module.eval(), name, inputs, input_names, output_names, serialization)


def _log(
    module: nn.Module,
    name: str,
    inputs: tuple[np.ndarray, ...],
    input_names: tuple[str, ...],
    output_names: tuple[str, ...],
    serialization: Format,
) -> str:
    import mlflow
    import mlflow.pytorch

    example = inputs[0] if len(inputs) == 1 else inputs
    with mlflow.start_run():
        info = mlflow.pytorch.log_model(
            module,
            name="model",
            signature=_signature(module, dict(zip(input_names, inputs, strict=True)), output_names),
            input_example=example if serialization == "pt2" else None,
            registered_model_name=name,
            pip_requirements=["torch"],
            serialization_format=serialization,
        )
    return str(info.registered_model_version)


def save_torch(
    root: Path,
    module: nn.Module,
    inputs: Mapping[str, np.ndarray],
    outputs: tuple[str, ...],
    serialization: Format = "pt2",
) -> SourceModel:
    """Write `module` as MLflow does, without a registry, and read it as a registered model."""
    import mlflow.pytorch

    arrays = {name: array[:2] for name, array in inputs.items()}
    with quiet():
        mlflow.pytorch.save_model(
            module,
            root,
            signature=_signature(module, arrays, outputs),
            input_example=tuple(arrays.values()) if serialization == "pt2" else None,
            pip_requirements=["torch"],
            serialization_format=serialization,
        )
    stored = read_mlmodel(root, "models:/zoo/1")
    return SourceModel(
        name="zoo",
        version="1",
        uri="models:/zoo/1",
        run_id="run",
        format=stored.format,
        signature=stored.signature,
        artifacts=root,
        model_path=stored.path,
        sha256=artifacts_sha256(root),
        pickle_allowed=stored.pickled,
    )


def _signature(
    module: nn.Module, inputs: Mapping[str, np.ndarray], outputs: tuple[str, ...]
) -> Any:
    """The MLflow signature of what `module` takes and gives, every first dimension -1."""
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    with torch.no_grad():
        answers = module(*(torch.tensor(array) for array in inputs.values()))
    values = order_outputs(answers, outputs)
    found = {name: value.numpy() for name, value in zip(outputs, values, strict=True)}
    taken, given = (
        Schema(
            [
                TensorSpec(array.dtype, (-1, *array.shape[1:]), label)
                for label, array in arrays.items()
            ]
        )
        for arrays in (inputs, found)
    )
    return ModelSignature(taken, given)
