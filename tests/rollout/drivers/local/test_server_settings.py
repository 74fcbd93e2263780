from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.domain.spec import DeploymentSettings
from mlctl.rollout.drivers.local.server_settings import server_environment, with_server_settings
from mlctl.rollout.journal.records import dumps, value_from
from mlctl.services.online.settings import ServerSettings

SECRET = "redis://:swordfish@features:6379/0"


@pytest.fixture(autouse=True)
def environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not home.exists()
    for name in os.environ:
        if name.removeprefix("MLCTL_").lower() in ServerSettings.model_fields:
            monkeypatch.delenv(name)


def test_with_server_settings__variables_in_force__are_kept_and_replaced_by_the_next_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLCTL_DEADLINE_MS", "200")
    monkeypatch.setenv("MLCTL_SLOW_MS", "50")
    kept = with_server_settings("shop", DeploymentSettings())
    assert kept.server == {"MLCTL_DEADLINE_MS": "200", "MLCTL_SLOW_MS": "50"}
    monkeypatch.delenv("MLCTL_DEADLINE_MS")
    monkeypatch.setenv("MLCTL_SLOW_MS", "")
    monkeypatch.setenv("MLCTL_THREADS", "2")
    kept = with_server_settings("shop", kept)
    assert kept.server == {"MLCTL_DEADLINE_MS": "200", "MLCTL_THREADS": "2"}


def test_server_environment__another_shells_variables__do_not_reach_the_servers() -> None:
    kept = replace(DeploymentSettings(), server={"MLCTL_DEADLINE_MS": "200"})
    found = server_environment(kept)
    assert found["MLCTL_DEADLINE_MS"] == "200"
    assert found["MLCTL_SLOW_MS"] == found["MLCTL_FEATURE_STORE"] == ""
    # Those have files of their own, or are the deployment's.
    assert not {"MLCTL_TOKEN", "MLCTL_TOKEN_FILE", "MLCTL_WORKERS"} & found.keys()


@pytest.mark.parametrize("url", [SECRET, "redis://features:6379/0?password=swordfish"])
def test_with_server_settings__password_in_a_url__is_in_a_private_file_only(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("MLCTL_FEATURE_STORE", url)
    kept = with_server_settings("shop", DeploymentSettings())
    assert "swordfish" not in dumps(kept)
    assert "***" in kept.server["MLCTL_FEATURE_STORE"]
    file = Path(kept.server_secrets or "")
    assert file.stat().st_mode & 0o777 == 0o600
    monkeypatch.delenv("MLCTL_FEATURE_STORE")
    again = with_server_settings("shop", kept)
    assert again == kept
    assert server_environment(again)["MLCTL_FEATURE_STORE"] == url
    monkeypatch.setenv("MLCTL_FEATURE_STORE", "redis://other:6379/0")
    assert with_server_settings("shop", kept).server_secrets is None
    assert not file.exists()
    with pytest.raises(MlctlError, match="cannot be read") as caught:
        server_environment(kept)
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_with_server_settings__relative_paths__mean_the_same_in_every_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {
        "ACCESS_LOG": ("calls.log", f"{tmp_path}/calls.log"),
        "SAMPLE_DIR": ("samples", f"{tmp_path}/samples"),
        "PRECOMPUTED_STORE": ("answers", f"{tmp_path}/answers"),
        "FEATURE_STORE": ("sqlite://features.db", f"sqlite://{tmp_path}/features.db"),
    }
    for name, (text, _) in given.items():
        monkeypatch.setenv(f"MLCTL_{name}", text)
    kept = with_server_settings("shop", DeploymentSettings())
    assert kept.server == {f"MLCTL_{name}": path for name, (_, path) in given.items()}
    monkeypatch.setenv("MLCTL_ACCESS_LOG", "stdout")
    monkeypatch.setenv("MLCTL_PRECOMPUTED_STORE", "redis://answers/0")
    kept = with_server_settings("shop", kept)
    assert kept.server["MLCTL_ACCESS_LOG"] == "stdout"
    assert kept.server["MLCTL_PRECOMPUTED_STORE"] == "redis://answers/0"


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("MAX_CLIENT_RPS", "many", "MLCTL_MAX_CLIENT_RPS: "),
        ("MAX_CLIENT_RPS", "0", "MLCTL_MAX_CLIENT_RPS: "),
        ("MAX_CLIENT_RPS", "nan", "MLCTL_MAX_CLIENT_RPS: "),
        ("MAX_CLIENT_RPS", "5", "MLCTL_MAX_CLIENT_RPS is set, but no tokens"),
        ("DEADLINE_MS", "soon", "MLCTL_DEADLINE_MS: "),
    ],
)
def test_with_server_settings__not_usable__is_rejected_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, name: str, given: str, message: str
) -> None:
    monkeypatch.setenv(f"MLCTL_{name}", given)
    with pytest.raises(MlctlError, match=message) as caught:
        with_server_settings("shop", DeploymentSettings())
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_with_server_settings__limit_with_tokens__is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tokens").write_text("0123456789abcdef")
    monkeypatch.setenv("MLCTL_MAX_CLIENT_RPS", "0.5")
    settings = replace(DeploymentSettings(), token_file=str(tmp_path / "tokens"))
    kept = with_server_settings("shop", settings)
    assert server_environment(kept)["MLCTL_MAX_CLIENT_RPS"] == "0.5"


def test_journal__settings_of_servers__come_back() -> None:
    kept = replace(DeploymentSettings(), server={"MLCTL_THREADS": "2"}, server_secrets="/s")
    assert value_from(DeploymentSettings, json.loads(dumps(kept))) == kept
