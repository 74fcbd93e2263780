"""Train a two-tower ranking model and rank 100 candidates: `python -m mlctl.examples.ranking`.

Each row is a user and a candidate. The model turns both ids into embeddings; the score is their
product. One request has the user with all candidates, and the caller sorts the scores.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from mlctl.examples.chain import example, register

NAME = "ranking"
USERS, ITEMS, WIDTH, CANDIDATES = 400, 300, 8, 100
TRAINING_ROWS, EVALUATION_ROWS, EPOCHS = 20_000, 400, 12


class TwoTowers(nn.Module):
    """The product of the embeddings of a user and an item, a number above 0 if they match."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, WIDTH)
        self.items = nn.Embedding(ITEMS, WIDTH)
        self.bias = nn.Embedding(ITEMS, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        product = (self.users(user) * self.items(item)).sum(dim=1)
        out: Tensor = product + self.bias(item)[:, 0]
        return out


def tastes(seed: int = 7) -> tuple[np.ndarray, np.ndarray]:
    """Return what users like and what items are, [USERS, 3] and [ITEMS, 3]."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(USERS, 3)), rng.normal(size=(ITEMS, 3))


def clicks(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return users, items, and whether the user clicked the item, each [rows]."""
    rng = np.random.default_rng(seed)
    user, item = rng.integers(0, USERS, rows), rng.integers(0, ITEMS, rows)
    likes, properties = tastes()
    match = (likes[user] * properties[item]).sum(axis=1) + 0.3 * rng.logistic(size=rows)
    return user, item, match > 0


def fit(rows: int = TRAINING_ROWS, epochs: int = EPOCHS) -> TwoTowers:
    """Return the model, trained on generated clicks."""
    torch.manual_seed(0)
    model = TwoTowers()
    user, item, clicked = map(torch.from_numpy, clicks(rows, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.03)
    for _ in range(epochs):
        for part in torch.split(torch.randperm(rows), 1000):
            optimizer.zero_grad()
            scores = model(user[part], item[part])
            loss = nn.functional.binary_cross_entropy_with_logits(scores, clicked[part].float())
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return model


def train(folder: Path) -> Path:
    """Train and register a version; write the evaluation rows, and return their file."""
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    number = np.dtype("int64")
    signature = ModelSignature(
        Schema([TensorSpec(number, (-1,), name) for name in ("user", "item")]),
        Schema([TensorSpec(np.dtype("float32"), (-1,), "score")]),
    )
    example = (np.zeros(2, np.int64), np.zeros(2, np.int64))
    register(
        "pytorch",
        fit().eval(),
        NAME,
        signature=signature,
        input_example=example,
        serialization_format="pt2",
    )
    user, item, clicked = clicks(EVALUATION_ROWS, 2)
    np.savez(folder / "evaluation.npz", user=user, item=item, labels=clicked.astype(np.int64))
    return folder / "evaluation.npz"


def request(user: int, candidates: np.ndarray) -> dict[str, list[int]]:
    """Return the body for `/predict`: one row per candidate."""
    return {"user": [user] * len(candidates), "item": candidates.tolist()}


def ranked(candidates: np.ndarray, scores: list[float], count: int = 10) -> list[int]:
    """Return the `count` best candidates, the best first."""
    return [int(candidates[at]) for at in np.argsort(scores)[::-1][:count]]


main = example(
    NAME,
    train,
    f"mlctl build {NAME} && mlctl serve {NAME}",
    "python -m mlctl.examples.ranking.client",
)

if __name__ == "__main__":
    main()
