from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.home import HOME_VARIABLE
from mlctl.registry.mlflow_catalog import MlflowCatalog
from mlctl.registry.tracking import (
    PICKLE_VARIABLE,
    TRACKING_VARIABLE,
    configure_tracking,
    missing_model_hint,
    registry_address,
    tracking_uri,
)

PROJECT = Path(__file__).parents[2]

_LOG_A_RUN = """
from mlctl.registry.tracking import configure_tracking
configure_tracking()
import mlflow
with mlflow.start_run() as run:
    mlflow.log_text("evidence", "note.txt")
print(run.info.artifact_uri)
"""


def test_tracking__default_store__is_under_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    monkeypatch.delenv(TRACKING_VARIABLE, raising=False)
    assert tracking_uri() == f"sqlite:///{tmp_path}/home/mlflow.db"
    monkeypatch.setenv(TRACKING_VARIABLE, "http://example.test")
    assert tracking_uri() == "http://example.test"


@pytest.mark.slow
def test_tracking__current_directory__stays_empty(registry_home: Path, tmp_path: Path) -> None:
    environment = {
        **{name: value for name, value in os.environ.items() if name != TRACKING_VARIABLE},
        HOME_VARIABLE: str(registry_home),
        "PYTHONPATH": str(PROJECT),
    }
    done = subprocess.run(
        [sys.executable, "-c", _LOG_A_RUN],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert list(tmp_path.iterdir()) == []
    assert done.stdout.strip().startswith((registry_home / "mlartifacts").as_uri())


@pytest.mark.slow
def test_tracking__environment__is_unchanged_with_pickle_off(
    catalog: MlflowCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    del catalog
    monkeypatch.delenv(PICKLE_VARIABLE, raising=False)
    configure_tracking()
    assert TRACKING_VARIABLE not in os.environ
    assert os.environ[PICKLE_VARIABLE] == "false"


def test_tracking__an_unreachable_server__is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    monkeypatch.setenv(TRACKING_VARIABLE, "http://user:secret@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(MlctlError) as caught:
        MlflowCatalog().list_models()
    assert caught.value.message == "no MLflow registry answers at http://127.0.0.1:9"
    assert caught.value.code is ErrorCode.REGISTRY_UNAVAILABLE
    assert "MLFLOW_TRACKING_URI" in caught.value.hint


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        ("postgresql://me:p@ss/word@db:5432/mlflow?password=x", "postgresql://db:5432/mlflow"),
        ("https://me:secret@mlflow.test/sub", "https://mlflow.test/sub"),
        ("sqlite:////data/a@b/mlflow.db", "sqlite:////data/a@b/mlflow.db"),
        ("./mlruns", "./mlruns"),
        ("databricks", "databricks"),
    ],
)
def test_registry_address__of_any_uri__has_no_credentials(
    monkeypatch: pytest.MonkeyPatch, uri: str, address: str
) -> None:
    monkeypatch.setenv(TRACKING_VARIABLE, uri)
    assert registry_address() == address


def test_missing_model_hint__mlflow_logged_to_this_folder__names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(TRACKING_VARIABLE, raising=False)
    assert "another registry" in missing_model_hint()
    (tmp_path / "mlflow.db").touch()
    assert missing_model_hint().endswith("export MLFLOW_TRACKING_URI=sqlite:///$PWD/mlflow.db")
    monkeypatch.setenv(TRACKING_VARIABLE, "http://example.test")
    assert "another registry" in missing_model_hint()


def test_a_registry_of_an_unknown_kind__fails__without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    monkeypatch.setenv(TRACKING_VARIABLE, "odd://user:secret@host/path")
    with pytest.raises(MlctlError) as caught:
        MlflowCatalog().list_models()
    assert caught.value.code is ErrorCode.REGISTRY_UNAVAILABLE
    assert caught.value.message.startswith("the MLflow registry at odd://host/path failed: ")
    assert "secret" not in caught.value.message


@pytest.mark.slow
def test_resolve__model_is_not_registered__names_the_registry_and_its_variable(
    catalog: MlflowCatalog, registry_home: Path
) -> None:
    with pytest.raises(MlctlError) as caught:
        catalog.resolve("digit")
    where = f"sqlite:///{registry_home}/mlflow.db"
    assert f"no model 'digit' is registered in {where}; did you mean " in caught.value.message
    assert f"set {TRACKING_VARIABLE} to that one" in caught.value.hint


@pytest.mark.slow
def test_tracking__a_new_store__may_be_created_by_two_at_once(tmp_path: Path) -> None:
    environment = {
        **{name: value for name, value in os.environ.items() if name != TRACKING_VARIABLE},
        HOME_VARIABLE: str(tmp_path / "home"),
        "PYTHONPATH": str(PROJECT),
    }
    code = "from mlctl.registry.tracking import configure_tracking; configure_tracking()"
    both = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    told = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
