"""Whether the installed TensorRT is the one that ONNX Runtime's provider was built for.

Told from package metadata and the names that the provider's library is linked to,
so nothing is loaded.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from bundle.packages import installed_version

_PROVIDER_LIBRARY = "capi/libonnxruntime_providers_tensorrt.so"
_LINKED = re.compile(rb"libnvinfer\.so\.(\d+)")

DISTRIBUTIONS = ("tensorrt-cu13", "tensorrt-cu12", "tensorrt")


def provider_problem() -> str | None:
    """Why onnxruntime's TensorRT provider cannot run here, as a clause; None if it can."""
    spec = find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        return "ONNX Runtime is not installed"
    library = Path(spec.origin).parent / _PROVIDER_LIBRARY
    if not library.is_file():
        return "the installed ONNX Runtime has no TensorRT provider"
    return major_mismatch(linked_major(library), tensorrt_version())


def linked_major(library: Path) -> str | None:
    """The major version of TensorRT that a shared library is linked to."""
    match = _LINKED.search(library.read_bytes())
    return match[1].decode() if match else None


def tensorrt_version() -> str | None:
    """The version of the installed TensorRT, whatever CUDA it is for."""
    found = (installed_version(name) for name in DISTRIBUTIONS)
    return next((version for version in found if version is not None), None)


def major_mismatch(linked: str | None, installed: str | None) -> str | None:
    """Why a provider linked to major `linked` cannot use version `installed`, as a clause."""
    if installed is None:
        return f"TensorRT {linked or ''}".rstrip() + " is not installed"
    if linked is not None and installed.split(".")[0] != linked:
        return f"its provider needs TensorRT {linked}, and {installed} is installed"
    return None
