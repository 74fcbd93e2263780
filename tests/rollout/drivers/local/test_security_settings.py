from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.domain.spec import DeploymentSettings
from mlctl.rollout.drivers.local.security_settings import (
    security_environment,
    with_signer,
    with_token,
)
from mlctl.rollout.journal import paths

ONE = "one-0123456789abcdef"


@pytest.fixture(autouse=True)
def environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not home.exists()
    for name in ("TOKEN", "TOKEN_FILE", "REQUIRE_SIGNATURE"):
        monkeypatch.delenv(f"MLCTL_{name}", raising=False)


def test_with_token__relative_file__is_kept_by_absolute_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tokens").write_text(ONE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLCTL_TOKEN_FILE", "tokens")
    kept = with_token("shop", DeploymentSettings())
    assert kept.token_file == str(tmp_path / "tokens")
    monkeypatch.delenv("MLCTL_TOKEN_FILE")
    assert with_token("shop", kept) == kept
    told = {"MLCTL_TOKEN_FILE": str(tmp_path / "tokens"), "MLCTL_TOKEN": ""}
    assert security_environment(kept) == told


def test_with_token__token_in_the_environment__is_stored_privately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLCTL_TOKEN", ONE)
    path = Path(with_token("shop", DeploymentSettings()).token_file or "")
    assert path.parent == paths.directory("shop")
    assert path.read_text() == ONE
    assert path.stat().st_mode & 0o777 == 0o600


def test_with_token__no_token__changes_nothing() -> None:
    assert with_token("shop", DeploymentSettings()) == DeploymentSettings()
    assert security_environment(DeploymentSettings()) == {}


def test_with_token__file_was_deleted__is_rejected(tmp_path: Path) -> None:
    kept = replace(DeploymentSettings(), token_file=str(tmp_path / "gone"))
    with pytest.raises(MlctlError, match="cannot be read") as caught:
        with_token("shop", kept)
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_with_signer__required_key__is_kept_in_the_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert with_signer(DeploymentSettings()) == DeploymentSettings()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLCTL_REQUIRE_SIGNATURE", "key.pub")
    with pytest.raises(MlctlError, match="no file") as caught:
        with_signer(DeploymentSettings())
    assert caught.value.code is ErrorCode.INVALID_INPUT
    (tmp_path / "key.pub").write_text("a key")
    kept = with_signer(DeploymentSettings())
    monkeypatch.delenv("MLCTL_REQUIRE_SIGNATURE")
    assert with_signer(kept) == kept
    told = {"MLCTL_REQUIRE_SIGNATURE": str(tmp_path / "key.pub")}
    assert security_environment(kept) == told
