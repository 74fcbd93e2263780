"""One sqlite MLflow for this package's tests, with a model logged as pt2 and one as pickle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlctl.core.home import HOME_VARIABLE
from mlctl.registry.mlflow_catalog import MlflowCatalog
from mlctl.registry.tracking import TRACKING_VARIABLE
from tests.support.torch_models import Branching, Cnn, log_torch


@pytest.fixture(scope="session")
def registry_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("registry-home")
    images = np.ones((2, 1, 8, 8), np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(home))
        patch.delenv(TRACKING_VARIABLE, raising=False)
        for _ in range(2):
            log_torch(Cnn(), "digits", images)
        log_torch(Branching(), "branchy", np.ones((2, 3), np.float32), serialization="pickle")
        catalog = MlflowCatalog()
        catalog.set_alias("digits", "candidate", "1")
    return home


@pytest.fixture
def catalog(registry_home: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowCatalog:
    monkeypatch.setenv(HOME_VARIABLE, str(registry_home))
    monkeypatch.delenv(TRACKING_VARIABLE, raising=False)
    return MlflowCatalog()
