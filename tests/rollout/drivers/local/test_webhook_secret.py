from __future__ import annotations

from pathlib import Path

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.domain.spec import DeploymentSettings
from mlctl.rollout.drivers.local.security_settings import (
    WEBHOOK_SECRET,
    WEBHOOK_SECRET_FILE,
    with_webhook_secret,
)
from mlctl.rollout.journal import paths

SETTINGS = DeploymentSettings(webhooks=("https://hooks.example/x",))


@pytest.fixture(autouse=True)
def environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not home.exists()
    for name in (WEBHOOK_SECRET, WEBHOOK_SECRET_FILE):
        monkeypatch.delenv(name, raising=False)


def test_webhook_secret__in_the_environment__kept_in_a_private_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(WEBHOOK_SECRET, "hush")
    path = Path(with_webhook_secret("shop", SETTINGS).webhook_secret or "")
    assert path.parent == paths.directory("shop")
    assert path.read_text() == "hush"
    assert path.stat().st_mode & 0o777 == 0o600


def test_webhook_secret__file__stays_where_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("hush\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(WEBHOOK_SECRET_FILE, "secret")
    assert with_webhook_secret("shop", SETTINGS).webhook_secret == str(tmp_path / "secret")


@pytest.mark.parametrize("content", [None, " \n"])
def test_webhook_secret__empty_file__rejected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv(WEBHOOK_SECRET_FILE, str(path))
    with pytest.raises(MlctlError) as caught:
        with_webhook_secret("shop", SETTINGS)
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_webhook_secret__none__settings_unchanged() -> None:
    assert with_webhook_secret("shop", SETTINGS) == SETTINGS


def test_webhook_secret__no_webhooks__kept_for_a_rollouts_notifications(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(WEBHOOK_SECRET, "hush")
    assert with_webhook_secret("shop", DeploymentSettings()).webhook_secret


@pytest.mark.parametrize("url", ["hooks.example", "ftp://hooks.example/x", "https://"])
def test_webhooks__invalid_url__rejected(url: str) -> None:
    with pytest.raises(MlctlError, match="webhooks"):
        DeploymentSettings(webhooks=(url,))
