from pathlib import Path

import pytest

from bundle.errors import ErrorCode, MlctlError
from services.tensorrt.options import EngineFlags, HardwareCompatibility, provider_options
from services.tensorrt.profile import Shapes

PROFILE = {"x": Shapes((1, 3), (8, 3), (32, 3))}


def options(flags: EngineFlags) -> dict[str, str]:
    return dict(provider_options(flags, PROFILE, Path("/engines"), Path("/timing")))


def test_caches_and_profile_are_set_and_no_precision() -> None:
    assert options(EngineFlags()) == {
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": "/engines",
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": "/timing",
        "trt_profile_min_shapes": "x:1x3",
        "trt_profile_opt_shapes": "x:8x3",
        "trt_profile_max_shapes": "x:32x3",
    }


def test_flags_that_the_provider_has() -> None:
    flags = EngineFlags(
        hardware_compatibility=HardwareCompatibility.AMPERE_PLUS, workspace_bytes=1 << 30
    )
    chosen = options(flags)
    assert chosen["trt_engine_hw_compatible"] == "1"
    assert chosen["trt_max_workspace_size"] == str(1 << 30)


@pytest.mark.parametrize(
    "flags",
    [
        EngineFlags(version_compatible=True),
        EngineFlags(hardware_compatibility=HardwareCompatibility.SAME_COMPUTE_CAPABILITY),
    ],
)
def test_flags_that_it_has_not_are_refused(flags: EngineFlags) -> None:
    with pytest.raises(MlctlError, match="ampere_plus") as caught:
        options(flags)
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert "tensorrt-raw" in caught.value.hint
