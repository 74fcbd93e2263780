"""Train a recommender and optimize it: `python -m mlctl.examples.recommendations`.

A nightly job stores the scores of all known customers. The server answers those by key, without
the model, and runs the model for a new customer, whose history comes with the request.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.neural_network import MLPRegressor

from mlctl.examples.chain import example, register, signature_of

NAME = "recommendations"
# How often a customer bought from each of these; the model says what comes next.
GROUPS = ("bakery", "books", "dairy", "drinks", "fish", "fruit", "garden", "toys")
TRAINING_ROWS, EVALUATION_ROWS, CUSTOMERS = 2000, 400, 500


def purchases(rows: int, seed: int) -> pd.DataFrame:
    """Return a table with the number of purchases in each group."""
    rng = np.random.default_rng(seed)
    tastes = rng.dirichlet(np.full(len(GROUPS), 0.5), rows)
    counts = rng.poisson(tastes * rng.integers(4, 40, (rows, 1)))
    return pd.DataFrame(counts.astype(np.float64), columns=list(GROUPS))


def next_purchases(frame: pd.DataFrame) -> np.ndarray:
    """Return the share of each group in the next purchases, [rows, groups]."""
    counts = frame.to_numpy() + 1.0
    neighbours = np.roll(counts, 1, axis=1) + np.roll(counts, -1, axis=1)
    mixed = 0.7 * counts + 0.3 * neighbours
    found: np.ndarray = mixed / mixed.sum(axis=1, keepdims=True)
    return found


def train(folder: Path) -> Path:
    """Train and register a version; write evaluation rows and tonight's customers."""
    rows = purchases(TRAINING_ROWS, 1)
    model = MLPRegressor(hidden_layer_sizes=(32,), max_iter=60, tol=1e-3, random_state=0)
    model.fit(rows, next_purchases(rows))
    register(
        "sklearn",
        model,
        NAME,
        signature=signature_of(rows, model.predict(rows)),
        serialization_format="skops",
        skops_trusted_types=["sklearn.neural_network._stochastic_optimizers.AdamOptimizer"],
    )
    purchases(EVALUATION_ROWS, 2).to_parquet(folder / "evaluation.parquet")
    tonight = purchases(CUSTOMERS, 3)
    tonight.insert(0, "customer", [f"c-{number}" for number in range(CUSTOMERS)])
    tonight.to_parquet(folder / "tonight.parquet")
    return folder / "evaluation.parquet"


main = example(
    NAME,
    train,
    f"mlctl build {NAME}",
    f"mlctl batch run {NAME} --in {{data}}/tonight.parquet --out precomputed://{NAME} "
    "--keep customer",
    f"MLCTL_PRECOMPUTED={NAME} mlctl serve {NAME}",
)

if __name__ == "__main__":
    main()
