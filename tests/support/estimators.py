"""Tables of generated rows, and estimators on them as registered models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.registry.catalog import ModelFormat, SourceModel, artifacts_sha256

COLUMNS = {
    "age": Datatype.FP64,
    "visits": Datatype.INT64,
    "city": Datatype.BYTES,
    "plan": Datatype.BYTES,
    "vip": Datatype.BOOL,
}
_ANY_OUTPUT = TensorSpec(name="prediction", dtype=Datatype.FP64, shape=(-1,))


def customers(rows: int, seed: int, *, unseen: bool = False) -> pd.DataFrame:
    """Return a table with missing ages and cities; `unseen` adds a city that training lacks."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.normal(40, 10, rows),
            "visits": rng.integers(0, 9, rows),
            "city": rng.choice(["Oslo", "Rome", "Bern"], rows).astype(object),
            "plan": rng.choice(["free", "paid"], rows).astype(object),
            "vip": rng.random(rows) > 0.5,
        }
    )
    frame.loc[::41, "age"] = np.nan
    frame.loc[::37, "city"] = np.nan
    if unseen:
        frame.loc[::31, "city"] = "Paris"
    return frame


def spending(frame: pd.DataFrame) -> np.ndarray:
    """Return a quantity that depends on the columns, [rows]."""
    found: np.ndarray = (
        frame["age"].fillna(40) * 1.3 + frame["visits"] * 3.0 + frame["vip"] * 5.0
    ).to_numpy()
    return found


def as_inputs(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return the table's columns as V2 inputs; missing text is empty."""
    return {
        str(name): _texts(frame[name]) if frame[name].dtype.kind == "O" else frame[name].to_numpy()
        for name in frame
    }


def _texts(column: Any) -> np.ndarray:
    found = np.empty(len(column), object)
    found[:] = [value.encode() if isinstance(value, str) else b"" for value in column]
    return found


def skops_source(
    model: Any, root: Path, columns: dict[str, Datatype] | int, *, lightgbm: bool = False
) -> SourceModel:
    """Store a fitted estimator as MLflow does; `columns` are a table's, or a matrix' width."""
    import skops.io

    path = root / "model.skops"
    skops.io.dump(model, path)
    return file_source(path, ModelFormat.LIGHTGBM if lightgbm else ModelFormat.SKLEARN, columns)


def file_source(
    path: Path, model_format: ModelFormat, columns: dict[str, Datatype] | int
) -> SourceModel:
    """Return a registered model around a stored file."""
    if isinstance(columns, int):
        inputs: tuple[TensorSpec, ...] = (
            TensorSpec(name="input", dtype=Datatype.FP64, shape=(-1, columns)),
        )
    else:
        inputs = tuple(
            TensorSpec(name=name, dtype=dtype, shape=(-1,)) for name, dtype in columns.items()
        )
    return SourceModel(
        name="table",
        version="1",
        uri="models:/table/1",
        run_id="",
        format=model_format,
        signature=Signature(inputs=inputs, outputs=(_ANY_OUTPUT,)),
        artifacts=path.parent,
        model_path=path,
        sha256=artifacts_sha256(path.parent),
        columns=not isinstance(columns, int),
        optional=frozenset({"age", "city"})
        & frozenset(() if isinstance(columns, int) else columns),
    )
