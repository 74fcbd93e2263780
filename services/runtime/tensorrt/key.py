"""The engine's key: everything that an engine depends on, so that a stale one has another name."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path

from bundle.entries import Key
from bundle.files import sha256_file
from bundle.manifest import canonical_json
from services.runtime.tensorrt.devices import Gpu
from services.runtime.tensorrt.profile import Profile, render_shapes


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, and the versions of the libraries that build its engines."""

    gpu: Gpu
    tensorrt: str
    onnxruntime: str


def engine_key(
    model_sha256: str, device: Device, profile: Profile, workspace_bytes: int | None
) -> Key:
    """Return the key of the engines of a model for `device`."""
    return {
        "kind": "engine",
        "model": model_sha256,
        **asdict(device.gpu),
        "tensorrt": device.tensorrt,
        "onnxruntime": device.onnxruntime,
        "profile": canonical_json(render_shapes(profile)).decode(),
        "workspace_bytes": workspace_bytes,
    }


def timing_name(device: Device) -> str:
    """The directory name of the timing cache: kernels are timed per GPU and version."""
    timed = {**asdict(device.gpu), "tensorrt": device.tensorrt}
    return hashlib.sha256(canonical_json(timed)).hexdigest()[:16]


def model_sha256(files: tuple[Path, ...]) -> str:
    """One digest of a graph and its data files: their names and contents, graph first."""
    listed = [[path.name, sha256_file(path)] for path in files]
    return hashlib.sha256(canonical_json(listed)).hexdigest()
