"""Train a fraud model on generated payments and optimize it: `python -m mlctl.examples.fraud`.

XGBoost takes numbers. The columns of the table are the model's inputs, so a payment on the stream
is a JSON object with these fields.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
from xgboost import XGBClassifier

from mlctl.examples.chain import example, register, signature_of

NAME = "fraud"
SEED = 11
TRAINING_ROWS, EVALUATION_ROWS, STREAMED_ROWS = 6000, 1500, 300


def payments(rows: int, seed: int) -> pd.DataFrame:
    """Return a table of payments."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "amount": rng.gamma(1.5, 60.0, rows).round(2),
            "hour": rng.integers(0, 24, rows),
            "minutes_since_last": rng.exponential(600.0, rows).round(1),
            "abroad": rng.random(rows) < 0.1,
        }
    )


def is_fraud(frame: pd.DataFrame, seed: int) -> np.ndarray:
    """Return 1 for a fraudulent payment, else 0, [rows]."""
    rng = np.random.default_rng(seed + 1)
    odds = (
        0.012 * (frame["amount"] - 200)
        + 2.0 * frame["abroad"]
        + 1.5 * (frame["minutes_since_last"] < 60)
        + 1.0 * (frame["hour"] < 5)
        + 0.5 * rng.logistic(size=len(frame))
    )
    found: np.ndarray = (odds.to_numpy() > 0).astype(np.int64)
    return found


def train(folder: Path) -> Path:
    """Train and register a version; write evaluation rows, and payments to stream."""
    rows = payments(TRAINING_ROWS, SEED)
    model = XGBClassifier(n_estimators=60, max_depth=4, n_jobs=1, random_state=SEED)
    model.fit(rows, is_fraud(rows, SEED))
    evaluation = payments(EVALUATION_ROWS, SEED + 10)
    labels = is_fraud(evaluation, SEED + 10)
    evaluation.assign(labels=labels).to_parquet(folder / "evaluation.parquet")
    streamed = payments(STREAMED_ROWS, SEED + 20).to_dict("records")
    lines = [json.dumps({"payment": number, **row}) for number, row in enumerate(streamed)]
    (folder / "payments.jsonl").write_text("\n".join(lines) + "\n")
    signature = signature_of(rows, model.predict(rows))
    register("xgboost", model, NAME, signature=signature)

    return folder / "evaluation.parquet"


main = example(
    NAME,
    train,
    f"mlctl build {NAME}",
    "mlctl stream send sqlite://events.db#payments --in {data}/payments.jsonl",
    f"mlctl stream run {NAME} --in sqlite://events.db#payments --out sqlite://events.db#scores "
    "--keep payment --until-empty",
    "mlctl stream peek sqlite://events.db#scores",
)

if __name__ == "__main__":
    main()
