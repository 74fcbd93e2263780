from pathlib import Path

from services.runtime.tensorrt.options import EngineOptions, provider_options
from services.runtime.tensorrt.profile import Shapes

PROFILE = {"x": Shapes((1, 3), (8, 3), (32, 3))}


def options(given: EngineOptions) -> dict[str, str]:
    return dict(provider_options(given, PROFILE, Path("/engines"), Path("/timing")))


def test_caches_and_profile_are_set_and_no_precision() -> None:
    assert options(EngineOptions()) == {
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": "/engines",
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": "/timing",
        "trt_profile_min_shapes": "x:1x3",
        "trt_profile_opt_shapes": "x:8x3",
        "trt_profile_max_shapes": "x:32x3",
    }


def test_a_limit_of_the_working_memory_is_passed_on() -> None:
    chosen = options(EngineOptions(workspace_bytes=1 << 30))
    assert chosen["trt_max_workspace_size"] == str(1 << 30)
