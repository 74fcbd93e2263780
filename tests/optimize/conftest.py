"""One sqlite MLflow for this package's tests, with the models that its tests optimize.

Caches and bundles live in the same home, as they do for a user: what one test has
exported the next one takes from the cache.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from mlctl.core.files import exclusive
from mlctl.core.home import HOME_VARIABLE
from mlctl.registry.mlflow_catalog import MlflowCatalog
from mlctl.registry.tracking import TRACKING_VARIABLE
from tests.support.memory_catalog import MemoryCatalog
from tests.support.shared import run_folder
from tests.support.sources import onnx_source
from tests.support.torch_models import (
    Branching,
    Cnn,
    Doubling,
    Linear,
    Looping,
    Mixing,
    Poisoned,
    Shifting,
    TwoInputs,
    log_torch,
)

ROWS = 96


def images() -> np.ndarray:
    return np.random.default_rng(7).random((ROWS, 1, 8, 8), dtype=np.float32)


def vectors() -> np.ndarray:
    return np.random.default_rng(8).random((ROWS, 3), dtype=np.float32)


@pytest.fixture(scope="session")
def optimize_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of this process, with a copy of the registry; its artifacts stay where they are.

    The models are logged once per run.
    """
    logged = run_folder(tmp_path_factory) / "optimize-models"
    with exclusive(logged.with_suffix(".lock")):
        if not (logged / "complete").exists():
            logged.mkdir()
            _log_models(logged)
            (logged / "complete").touch()
    home = tmp_path_factory.mktemp("optimize-home")
    shutil.copyfile(logged / "mlflow.db", home / "mlflow.db")
    return home


def _log_models(home: Path) -> None:
    torch.manual_seed(0)
    pair, wide = np.ones((2, 3), np.float32), np.ones((2, 6, 16), np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(home))
        patch.delenv(TRACKING_VARIABLE, raising=False)
        log_torch(Cnn(), "Digits", images()[:2])
        log_torch(Mixing(), "mixing", pair)
        log_torch(Poisoned(), "poisoned", pair)
        log_torch(Linear(), "linear", wide, output_names=("hidden",))
        log_torch(
            TwoInputs(),
            "tokens",
            np.ones((2, 5), np.int64),
            np.ones((2, 5), np.float32),
            input_names=("ids", "mask"),
            output_names=("pooled", "count"),
        )
        log_torch(Shifting(), "shifting", pair, serialization="pickle")
        log_torch(Branching(), "branching", pair, serialization="pickle")
        log_torch(Looping(), "looping", pair, serialization="pickle")
        log_torch(Doubling(), "doubling", pair, serialization="pickle")


@pytest.fixture
def catalog(optimize_home: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowCatalog:
    monkeypatch.setenv(HOME_VARIABLE, str(optimize_home))
    monkeypatch.delenv(TRACKING_VARIABLE, raising=False)
    return MlflowCatalog()


@pytest.fixture
def onnx_catalog(home: Path) -> MemoryCatalog:
    """An empty home and a registry with one model, `tiny`, that is ONNX already: no torch here."""
    home.mkdir()
    return MemoryCatalog([onnx_source(home / "registered")])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, for tests that need no registry."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    return tmp_path / "home"
