"""Having an engine built by a worker process."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from services.tensorrt.options import EngineOptions, Flavour
from services.tensorrt.process import OnProgress, run_worker
from services.tensorrt.profile import Profile


@dataclass(frozen=True, slots=True)
class Built:
    """The engine's size, and the version of the TensorRT that made it."""

    engine_bytes: int
    version: str


def build_engine(
    model: Path,
    engine: Path,
    profile: Profile,
    options: EngineOptions,
    flavour: Flavour = Flavour.TENSORRT,
    timing_cache: Path | None = None,
    on_progress: OnProgress | None = None,
) -> Built:
    """Write the engine of the ONNX file `model` to `engine`; WorkerError says why there is none.

    TensorRT-RTX needs no GPU for it; TensorRT does. `timing_cache` is read and renewed.
    """
    request = {
        "model": str(model.absolute()),
        "engine": str(engine.absolute()),
        "flavour": flavour.value,
        "profile": {
            name: [shapes.least, shapes.usual, shapes.greatest] for name, shapes in profile.items()
        },
        "flags": asdict(options.flags),
        "timing_cache": None if timing_cache is None else str(timing_cache),
    }
    return Built(**run_worker("build", request, options.build_timeout_s, on_progress))
