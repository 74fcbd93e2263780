"""Train a churn model on generated customers and optimize it: `python -m mlctl.examples.churn`.

The pipeline does all preprocessing: it fills missing ages and cities, scales numbers and encodes
text. mlctl converts the whole pipeline, so that callers send the columns of the table as they are.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from mlctl.examples.chain import example, register, signature_of

NAME = "churn"
SEED = 7
TRAINING_ROWS, EVALUATION_ROWS, NIGHTLY_ROWS = 4000, 1000, 500
CLASSES = ("leaves", "stays")


def customers(rows: int, seed: int) -> pd.DataFrame:
    """Return a table of customers; some ages and cities are missing."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.normal(44, 12, rows).round(),
            "months": rng.integers(1, 72, rows),
            "monthly_fee": rng.gamma(4.0, 12.0, rows).round(2),
            "city": rng.choice(["Bern", "Oslo", "Rome", "Turin"], rows).astype(object),
            "plan": rng.choice(["basic", "family", "premium"], rows).astype(object),
        }
    )
    frame.loc[rng.random(rows) < 0.05, "age"] = np.nan
    frame.loc[rng.random(rows) < 0.05, "city"] = np.nan
    return frame


def outcome(frame: pd.DataFrame, seed: int) -> np.ndarray:
    """Return for each customer the number of a class in CLASSES, [rows]."""
    rng = np.random.default_rng(seed + 1)
    stay = (
        0.05 * frame["months"]
        - 0.03 * frame["monthly_fee"]
        + 1.5 * (frame["plan"] == "family")
        + 0.02 * (frame["age"].fillna(44) - 44)
        + rng.logistic(size=len(frame))
    )
    found: np.ndarray = (stay.to_numpy() > 0).astype(np.int64)
    return found


def make_pipeline() -> Pipeline:
    """Return the pipeline, not fitted."""
    numbers = Pipeline([("fill", SimpleImputer()), ("scale", StandardScaler())])
    text = Pipeline(
        [
            ("fill", SimpleImputer(strategy="most_frequent")),
            ("encode", OneHotEncoder(handle_unknown="ignore")),
        ]
    )
    columns = ColumnTransformer(
        [("numbers", numbers, ["age", "months", "monthly_fee"]), ("text", text, ["city", "plan"])]
    )
    return Pipeline([("columns", columns), ("classifier", LogisticRegression(max_iter=500))])


def train(folder: Path) -> Path:
    """Train and register a version; write evaluation rows and tonight's customers."""
    rows = customers(TRAINING_ROWS, SEED)
    model = make_pipeline().fit(rows, np.array(CLASSES)[outcome(rows, SEED)])
    evaluation = customers(EVALUATION_ROWS, SEED + 10)
    labels = outcome(evaluation, SEED + 10)
    evaluation.assign(labels=labels).to_parquet(folder / "evaluation.parquet")
    tonight = customers(NIGHTLY_ROWS, SEED + 20)
    tonight.insert(0, "customer", np.arange(NIGHTLY_ROWS))
    tonight.to_parquet(folder / "tonight.parquet")
    register(
        "sklearn",
        model,
        NAME,
        signature=signature_of(rows, model.predict(rows)),
        serialization_format="skops",
        skops_trusted_types=["numpy.dtype"],
    )

    return folder / "evaluation.parquet"


main = example(
    NAME,
    train,
    f"mlctl build {NAME}",
    f"mlctl batch run {NAME} --in {{data}}/tonight.parquet --out scores --keep customer",
)

if __name__ == "__main__":
    main()
