"""Tables of the zoo: rows to train on, rows that judge, and rows that neither has.

The rows that judge have no gap, no unseen category and no extreme value: whatever a model does with
those, no proof on the rows alone can know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import is_classifier, is_clusterer, is_outlier_detector, is_regressor

from tests.outside.case import Arrays, Row, Source, log

TRAIN, JUDGE, ORDINARY = 160, 40, 16
_WORDS = ["good", "bad", "slow", "fast", "cheap", "broken", "works", "battery", "screen", "late"]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one form: `train` and `judge` frames, and rows that no one saw."""

    train: pd.DataFrame
    judge: pd.DataFrame
    ordinary: tuple[Row, ...]
    odd: tuple[Row, ...]


def customers() -> Table:
    """Return a table with gaps in `age` and `city`, categories, texts, whole numbers and flags."""
    train, judge, fresh = (_customers(rows, seed) for rows, seed in _PARTS)
    for column, step in (("age", 11), ("city", 13)):
        train.loc[::step, column] = np.nan
    usual: Row = _records(fresh)[0]
    changes: Sequence[dict[str, Any]] = (
        {"age": None},
        {"city": None},
        {"age": None, "city": None},
        {"city": "Lima"},
        {"city": ""},
        {"city": "oslo"},
        {"plan": "trial"},
        {"plan": ""},
        {"plan": None},
        {"visits": None},
        {"vip": None},
        {"city": "Zürich \U0001f3d4"},
        {"city": "x" * 5000},
        {"note": ""},
        {"note": "  "},
        {"note": "GOOD, don't: naïve 日本語 İstanbul σς"},
        {"note": "good " * 800},
        {"note": "e\u0301 \u00a0 a-b_c 12 3.5"},
        {"age": 0.0},
        {"age": 1e6},
        {"age": -1e30},
        {"age": 1e300},
        {"visits": 0},
        {"visits": -3},
        {"visits": 2**53 + 1},
        {"visits": -(2**63)},
    )
    return Table(train, judge, tuple(_records(fresh)), tuple({**usual, **each} for each in changes))


def numbers(*, gaps: bool = False, names: Sequence[Any] = ("a", "b", "c", "d")) -> Table:
    """Return four positive numbers; only the rows to train on have `gaps`."""
    train, judge, fresh = (
        pd.DataFrame(np.random.default_rng(seed).gamma(2.0, 2.0, (rows, len(names))), columns=names)
        for rows, seed in _PARTS
    )
    if gaps:
        train = train.mask(np.random.default_rng(4).random(train.shape) < 0.05)
    usual = _records(fresh)[0]
    first, last = str(names[0]), str(names[-1])
    changes: Sequence[dict[str, Any]] = (
        {first: None},
        {last: None},
        dict.fromkeys(usual),
        {first: 0.0, last: -0.0},
        {first: -5.0},
        {last: 1e6},
        {first: -1e30},
        {last: 1e300},
        {first: 1e-300},
        {first: 16777217.0},
    )
    return Table(train, judge, tuple(_records(fresh)), tuple({**usual, **each} for each in changes))


def spending(frame: pd.DataFrame) -> np.ndarray:
    """Return a positive quantity that depends on the columns, [rows]."""
    numeric = frame.select_dtypes("number").fillna(3.0).to_numpy(float)
    found = 2.0 + np.abs(numeric[:, 0]) + 0.5 * numeric[:, 1] ** 2 / (1 + numeric[:, 1])
    if "city" in frame:
        found = found + frame["city"].map({"Bern": 5.0, "Oslo": 1.0}).fillna(9.0).to_numpy(float)
    if "note" in frame:
        found = found + 4.0 * frame["note"].str.contains("good").to_numpy(float)
    return np.asarray(found)


def classes(frame: pd.DataFrame, *labels: Any) -> np.ndarray:
    """Return one of `labels` for each row, about as often as the others."""
    found = spending(frame)
    edges = np.quantile(found, np.linspace(0, 1, len(labels) + 1)[1:-1])
    chosen: np.ndarray = np.array(labels)[np.digitize(found, edges)]
    return chosen


def estimator_source(model: Any, table: Table, target: Any, flavor: str = "sklearn") -> Source:
    """Train `model` on the table and return it with its rows."""
    model.fit(table.train, target) if target is not None else model.fit(table.train)
    return fitted_source(model, table, flavor)


def fitted_source(
    model: Any, table: Table, flavor: str = "sklearn", answer: Callable[[Any], Arrays] | None = None
) -> Source:
    """Return a trained model with its rows; `answer` replaces its own methods."""

    def register(name: str) -> None:
        from mlflow.models import infer_signature

        options: dict[str, Any] = {}
        if flavor in ("sklearn", "lightgbm") and hasattr(model, "get_params"):
            import skops.io

            unknown = skops.io.get_untrusted_types(data=skops.io.dumps(model))
            options = {"serialization_format": "skops", "skops_trusted_types": unknown}
        answers = model.predict(table.judge) if hasattr(model, "predict") and not answer else None
        signature = infer_signature(table.train, answers)
        log(flavor, model, name, signature=signature, **options)

    def write(folder: Path) -> Path:
        path = folder / "judge.parquet"
        table.judge.rename(columns=str).to_parquet(path)
        return path

    def run(rows: Sequence[Row]) -> Arrays:
        frame = frame_of(rows, table.train)
        return answers_of(model, frame) if answer is None else answer(frame)

    return Source(register, write, table.ordinary, table.odd, run)


def frame_of(rows: Sequence[Row], like: pd.DataFrame) -> pd.DataFrame:
    """Return rows as a table with the columns and types of `like`.

    Empty text in a column that has gaps is a gap. ValueError for a gap in a column of integers or
    flags.
    """
    found = {}
    for name in like:
        values = [row[str(name)] for row in rows]
        if like[name].isna().any():
            values = [None if isinstance(each, str) and not each else each for each in values]
        if like[name].dtype.kind in "ib" and None in values:
            raise ValueError(f"there is a gap in {name}")
        found[name] = pd.Series(values, dtype=like[name].dtype)
    return pd.DataFrame(found)


def answers_of(model: Any, frame: pd.DataFrame) -> Arrays:
    """Return what docs/models.md promises for each kind of estimator."""
    if is_regressor(model):
        return {"prediction": _array(model.predict(frame), np.float64)}
    found = {"label": np.asarray(model.predict(frame))}
    if found["label"].dtype.kind in "OUT":
        found["label"] = np.array([str(each).encode() for each in found["label"]], object)
    else:
        found["label"] = found["label"].astype(np.int64)
    if is_classifier(model) and hasattr(model, "predict_proba"):
        found["probabilities"] = _array(model.predict_proba(frame), np.float64)
    if is_outlier_detector(model):
        found["score"] = _array(model.decision_function(frame), np.float64)
    assert is_classifier(model) or is_outlier_detector(model) or is_clusterer(model)
    return found


def _array(values: Any, dtype: Any) -> np.ndarray:
    found = np.asarray(values, dtype)
    return found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found


_PARTS = ((TRAIN, 1), (JUDGE, 2), (ORDINARY, 3))


def _customers(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.normal(40, 10, rows),
            "visits": rng.integers(0, 9, rows),
            "city": rng.choice(["Oslo", "Rome", "Bern"], rows).tolist(),
            "plan": rng.choice(["free", "paid"], rows).tolist(),
            "vip": rng.random(rows) > 0.5,
            "note": [" ".join(rng.choice(_WORDS, rng.integers(1, 7))) for _ in range(rows)],
        }
    )


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]
