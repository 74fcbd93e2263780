"""Building an engine with TensorRT-RTX, in a worker process: a check that needs no GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.runtime.tensorrt.process import run_worker
from services.runtime.tensorrt.profile import Profile

# TensorRT for desktop GPUs: the same importer and builder, but it builds without a GPU.
LIBRARY = "tensorrt_rtx"


@dataclass(frozen=True, slots=True)
class Built:
    """The engine's size, and the version of the TensorRT-RTX that made it."""

    engine_bytes: int
    version: str


def build_engine(model: Path, profile: Profile, timeout_s: float) -> Built:
    """Build an engine of the ONNX file `model` and throw it away; WorkerError if there is none."""
    request = {
        "library": LIBRARY,
        "model": str(model.absolute()),
        "profile": {
            name: [shapes.least, shapes.usual, shapes.greatest] for name, shapes in profile.items()
        },
    }
    return Built(**run_worker("build", request, timeout_s))
