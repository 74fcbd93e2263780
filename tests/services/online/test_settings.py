from pathlib import Path

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.model.tensorrt.profile import DEFAULT_LENGTHS, SizeRange
from mlctl.services.online.settings import load_settings


def test_settings__defaults__are_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLCTL_GRPC_PORT", raising=False)
    settings = load_settings()
    assert settings.grpc_host == "127.0.0.1"
    assert settings.grpc_port is None
    assert settings.provider is None


def test_settings__environment__overrides_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLCTL_GRPC_PORT", "9000")
    monkeypatch.setenv("MLCTL_BUNDLE", "/models/a")
    assert load_settings().grpc_port == 9000
    assert load_settings().bundle == Path("/models/a")


def test_settings__invalid_value__names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLCTL_THREADS", "many")
    with pytest.raises(MlctlError, match="MLCTL_THREADS") as caught:
        load_settings()
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_settings__batching_is_not_set__is_the_bundles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("max_queue_rows", "max_queue_ms", "max_wait_ms", "max_length", "max_body_bytes")
    assert all(getattr(load_settings(), name) is None for name in names)
    monkeypatch.setenv("MLCTL_MAX_WAIT_MS", "0")
    assert load_settings().max_wait_ms == 0


def test_lengths__unset_or_set__are_the_range_of_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().lengths == DEFAULT_LENGTHS
    monkeypatch.setenv("MLCTL_TENSORRT_LENGTHS", "1:64:256")
    assert load_settings().lengths == SizeRange(1, 64, 256)


@pytest.mark.parametrize("lengths", ["64", "1:2", "a:b:c", "5:4:3", "0:1:2"])
def test_settings__lengths_are_no_range__name_their_variable(
    lengths: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLCTL_TENSORRT_LENGTHS", lengths)
    with pytest.raises(MlctlError, match="MLCTL_TENSORRT_LENGTHS"):
        load_settings()
