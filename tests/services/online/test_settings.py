from pathlib import Path

import pytest

from bundle.errors import ErrorCode, MlctlError
from services.online.settings import load_settings
from services.runtime.tensorrt.options import EngineOptions
from services.runtime.tensorrt.profile import SizeRange


def test_defaults_are_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLCTL_GRPC_PORT", raising=False)
    settings = load_settings()
    assert settings.grpc_host == "127.0.0.1"
    assert settings.grpc_port is None
    assert settings.provider is None


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


def test_what_batching_does_is_the_bundles_unless_it_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("max_queue_rows", "max_queue_ms", "max_wait_ms", "pad_rows")
    assert all(getattr(load_settings(), name) is None for name in names)
    monkeypatch.setenv("MLCTL_MAX_WAIT_MS", "0")
    monkeypatch.setenv("MLCTL_PAD_ROWS", "true")
    assert load_settings().max_wait_ms == 0
    assert load_settings().pad_rows is True


def test_an_engines_options_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLCTL_TRT_WORKSPACE_MB", "512")
    monkeypatch.setenv("MLCTL_TRT_LENGTHS", "1:64:256")
    monkeypatch.setenv("MLCTL_TRT_BUILD_TIMEOUT_S", "90")
    engine = load_settings().engine
    assert engine.workspace_bytes == 512 << 20
    assert engine.lengths == SizeRange(1, 64, 256)
    assert engine.build_timeout_s == 90.0


def test_without_them_an_engine_is_built_with_the_defaults() -> None:
    assert load_settings().engine == EngineOptions()


@pytest.mark.parametrize("lengths", ["64", "1:2", "a:b:c", "5:4:3", "0:1:2"])
def test_lengths_that_are_no_range_name_their_variable(
    lengths: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLCTL_TRT_LENGTHS", lengths)
    with pytest.raises(MlctlError, match="MLCTL_TRT_LENGTHS"):
        load_settings()
