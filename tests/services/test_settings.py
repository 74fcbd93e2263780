from pathlib import Path

import pytest

from bundle.errors import ErrorCode, MlctlError
from services.settings import load_settings


def test_defaults_are_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLCTL_GRPC_PORT", raising=False)
    settings = load_settings()
    assert settings.grpc_host == "127.0.0.1"
    assert settings.grpc_port is None
    assert settings.provider == "cpu"


def test_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLCTL_GRPC_PORT", "9000")
    monkeypatch.setenv("MLCTL_BUNDLE", "/models/a")
    assert load_settings().grpc_port == 9000
    assert load_settings().bundle == Path("/models/a")


def test_a_wrong_value_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLCTL_THREADS", "many")
    with pytest.raises(MlctlError, match="MLCTL_THREADS") as caught:
        load_settings()
    assert caught.value.code is ErrorCode.INVALID_INPUT
