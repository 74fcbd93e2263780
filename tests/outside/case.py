"""A case of the zoo: a model as its author logs it, and rows with what the source says of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# The values of a row by input; None is a gap.
Row = Mapping[str, Any]
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Source:
    """A trained model.

    `log` registers it under a name, `write` writes the rows that judge to a folder and returns
    their file. `ordinary` rows are like those of the training; each needs an answer. `odd` rows may
    be rejected. `answer` runs the model itself, and raises what it raises.
    """

    log: Callable[[str], None]
    write: Callable[[Path], Path]
    ordinary: Sequence[Row]
    odd: Sequence[Row]
    answer: Callable[[Sequence[Row]], Arrays]


@dataclass(frozen=True, slots=True)
class Case:
    """A model of the zoo; a sentence that rejects it names one of `kinds`."""

    group: str
    name: str
    kinds: tuple[str, ...]
    make: Callable[[], Source]

    @property
    def registered_name(self) -> str:
        """The name that it has in the registry."""
        return re.sub(r"[^a-zA-Z0-9]+", "-", f"{self.group} {self.name}").strip("-").lower()


def log(flavor: str, model: Any, name: str, **options: Any) -> None:
    """Log a model with MLflow and register it, as its documentation says."""
    import importlib

    import mlflow

    with mlflow.start_run():
        importlib.import_module(f"mlflow.{flavor}").log_model(
            model, name="model", pip_requirements=[], registered_model_name=name, **options
        )
