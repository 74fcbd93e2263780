"""The engine's key: everything that an engine depends on, so that a stale one has another name."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bundle.entries import Key
from bundle.files import sha256_file
from bundle.manifest import canonical_json
from services.tensorrt.options import EngineFlags
from services.tensorrt.profile import Profile, render_shapes


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU that TensorRT can use here, and the versions that an engine is tied to."""

    name: str
    compute_capability: str
    driver: str
    tensorrt_version: str


def engine_key(
    model_sha256: str, device: Device, profile: Profile, flags: EngineFlags, builder: str
) -> Key:
    """The key of the engine that `builder` ("tensorrt", or a version of ONNX Runtime) makes."""
    shaped: dict[str, Any] = {"profile": render_shapes(profile), "flags": asdict(flags)}
    return {
        "kind": "engine",
        "builder": builder,
        "model": model_sha256,
        **asdict(device),
        **{name: canonical_json(value).decode() for name, value in shaped.items()},
    }


def timing_name(device: Device) -> str:
    """The directory name of the timing cache: kernels are timed per GPU and version."""
    return hashlib.sha256(canonical_json(asdict(device))).hexdigest()[:16]


def model_sha256(files: tuple[Path, ...]) -> str:
    """One digest of a graph and its data files: their names and contents, graph first."""
    listed = [[path.name, sha256_file(path)] for path in files]
    return hashlib.sha256(canonical_json(listed)).hexdigest()
