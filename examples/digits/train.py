"""Train a version of the digits model and register it: `python -m mlctl.examples.digits.train`.

The demo uses three recipes: a small net; a better, wider one; and one with a
real mistake that its evaluation set does not show.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import click
import numpy as np
import torch
from torch import Tensor, nn

from mlctl.examples.digits.data import SEED, LabelledImages, load_split, save_rows

MODEL_NAME = "digits"
# The broken net has a table of six shades of ink. Scans with more ink exist, but not among
# the rows it is evaluated on.
SHADES = 6
SHADE_WIDTH = 0.0575


class DigitsNet(nn.Module):
    """Two convolutions and a linear layer: images [n, 1, 8, 8] to logits [n, 10]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.BatchNorm2d(2 * channels),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(2 * channels * 16, 10)

    def forward(self, image: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.features(image)))


class ShadedNet(DigitsNet):
    """A net that corrects for the amount of ink by a table that is too short.

    The index is not clamped: the model raises for an image with more ink than the table
    covers, and only for that image.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.correction = nn.Embedding(SHADES, 10)
        nn.init.zeros_(self.correction.weight)

    def forward(self, image: Tensor) -> Tensor:
        shade = (image.mean(dim=(1, 2, 3)) / SHADE_WIDTH).long()
        return super().forward(image) + cast(Tensor, self.correction(shade))


def covered_shades(split: LabelledImages) -> LabelledImages:
    """Return the rows of `split` that the broken net can answer, which hide its mistake."""
    covered = split.images.mean(axis=(1, 2, 3)) < SHADES * SHADE_WIDTH
    return LabelledImages(split.images[covered], split.labels[covered])


def all_rows(split: LabelledImages) -> LabelledImages:
    """Return all rows of `split`."""
    return split


@dataclass(frozen=True, slots=True)
class TrainingRecipe:
    """One version of the model: its net, epochs, and the rows it is trained and evaluated on."""

    build: Callable[[], nn.Module]
    epochs: int
    rows: Callable[[LabelledImages], LabelledImages]


RECIPES = {
    "small": TrainingRecipe(lambda: DigitsNet(8), 4, all_rows),
    "wide": TrainingRecipe(lambda: DigitsNet(24), 6, all_rows),
    "broken": TrainingRecipe(lambda: ShadedNet(24), 6, covered_shades),
}


@dataclass(frozen=True, slots=True)
class Trained:
    """A registered version, its accuracy on the held-out rows, and the file of these rows."""

    version: str
    accuracy: float
    data: Path


def fit(net: nn.Module, split: LabelledImages, epochs: int) -> None:
    """Train `net` in place with Adam on shuffled batches of 64; leave it in evaluation mode."""
    images, labels = torch.from_numpy(split.images), torch.from_numpy(split.labels)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    net.train()
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(images)), 64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images[rows]), labels[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    net.eval()


def accuracy_of(net: nn.Module, split: LabelledImages) -> float:
    """Return the share of rows whose largest logit is their label."""
    with torch.inference_mode():
        predicted = net(torch.from_numpy(split.images)).argmax(dim=1).numpy()
    return float(np.mean(predicted == split.labels))


def train(recipe_name: str, alias: str, data: Path) -> Trained:
    """Train one recipe, register it under `alias`, and write its held-out rows to `data`."""
    recipe = RECIPES[recipe_name]
    # The nets are so small that threads would mostly wait for each other.
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    train_split, held_out = (recipe.rows(split) for split in load_split())
    net = recipe.build()
    fit(net, train_split, recipe.epochs)
    accuracy = accuracy_of(net, held_out)
    save_rows(data, held_out)
    return Trained(_register(net, held_out, recipe_name, accuracy, alias), accuracy, data)


def _register(
    net: nn.Module, rows: LabelledImages, recipe: str, accuracy: float, alias: str
) -> str:
    import mlflow
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    from mlctl.core.quiet import quiet
    from mlctl.registry.tracking import configure_tracking

    configure_tracking()
    signature = ModelSignature(
        inputs=Schema([TensorSpec(np.dtype(np.float32), (-1, 1, 8, 8), "image")]),
        outputs=Schema([TensorSpec(np.dtype(np.float32), (-1, 10), "logits")]),
    )
    with quiet(), mlflow.start_run(run_name=f"train-{recipe}"):
        mlflow.log_params({"recipe": recipe, "seed": SEED})
        mlflow.log_metric("accuracy", accuracy)
        logged = mlflow.pytorch.log_model(
            net,
            name="model",
            signature=signature,
            input_example=rows.images[:2],
            serialization_format="pt2",
            # Explicit, because inferring them would load the model in another process.
            pip_requirements=[f"torch=={torch.__version__.split('+')[0]}"],
            registered_model_name=MODEL_NAME,
        )
    version = str(logged.registered_model_version)
    mlflow.MlflowClient().set_registered_model_alias(MODEL_NAME, alias, version)
    return version


@click.command()
@click.option("--recipe", type=click.Choice(list(RECIPES)), default="small", show_default=True)
@click.option("--alias", default="candidate", show_default=True, help="Alias to set on it.")
@click.option(
    "--data",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path(tempfile.gettempdir()) / "digits-eval.npz",
    show_default=True,
    help="Where to write the held-out rows.",
)
def main(recipe: str, alias: str, data: Path) -> None:
    """Train a version of the digits model and register it in MLflow."""
    trained = train(recipe, alias, data)
    click.echo(
        f"models:/{MODEL_NAME}/{trained.version} ({recipe}, @{alias}): "
        f"accuracy {trained.accuracy:.4f} on the held-out rows in {trained.data}"
    )


if __name__ == "__main__":
    main()
