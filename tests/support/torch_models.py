"""Small torch models, well-behaved and not, and logging them to MLflow as a user would."""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np
import torch
from torch import nn

from registry.quiet import quiet
from registry.tracking import configure_tracking

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
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    with torch.no_grad():
        answer = module(*(torch.tensor(array) for array in inputs))
    outputs = list(answer.values()) if isinstance(answer, dict) else [answer]
    taken, given = (
        Schema(
            [
                TensorSpec(array.dtype, (-1, *array.shape[1:]), label)
                for array, label in zip(arrays, labels, strict=True)
            ]
        )
        for arrays, labels in (
            (inputs, input_names),
            ([output.numpy() for output in outputs], output_names),
        )
    )
    example = inputs[0] if len(inputs) == 1 else inputs
    with mlflow.start_run():
        info = mlflow.pytorch.log_model(
            module,
            name="model",
            signature=ModelSignature(taken, given),
            input_example=example if serialization == "pt2" else None,
            registered_model_name=name,
            pip_requirements=["torch"],
            serialization_format=serialization,
        )
    return str(info.registered_model_version)
