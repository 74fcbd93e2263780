"""The GPU of this machine and the TensorRT installed on it, without loading CUDA or TensorRT."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.packages import installed_version

DISTRIBUTIONS = ("tensorrt-cu13", "tensorrt-cu12", "tensorrt")
_PROVIDER_LIBRARY = "capi/libonnxruntime_providers_tensorrt.so"
_LINKED = re.compile(rb"libnvinfer\.so\.(\d+)")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU's name, its compute capability, such as "9.0", and the version of its driver."""

    name: str
    compute_capability: str
    driver: str


def find_gpu() -> Gpu:
    """Return the first GPU that CUDA_VISIBLE_DEVICES leaves; creates no CUDA context.

    PROVIDER_UNAVAILABLE says what is missing. NVIDIA's management library (NVML) counts GPUs as
    CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID; that matters only where they differ.
    """
    try:
        import pynvml
    except ImportError:
        raise _no_gpu("the Python package nvidia-ml-py is not installed") from None
    nvml: Any = pynvml
    try:
        nvml.nvmlInit()
        try:
            handle = _handle(nvml, os.environ.get("CUDA_VISIBLE_DEVICES", "0"))
            major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
            name, driver = nvml.nvmlDeviceGetName(handle), nvml.nvmlSystemGetDriverVersion()
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        raise _no_gpu(f"NVML reports: {error}") from error
    return Gpu(name, f"{major}.{minor}", driver)


def provider_problem() -> str | None:
    """Return why ONNX Runtime's TensorRT provider cannot run here, as a clause; None if it can."""
    spec = find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        return "ONNX Runtime is not installed"
    library = Path(spec.origin).parent / _PROVIDER_LIBRARY
    if not library.is_file():
        return "the installed ONNX Runtime has no TensorRT provider"
    return major_mismatch(linked_major(library), tensorrt_version())


def linked_major(library: Path) -> str | None:
    """Return the major version of TensorRT that a shared library is linked to, None without."""
    match = _LINKED.search(library.read_bytes())
    return match[1].decode() if match else None


def tensorrt_version() -> str | None:
    """Return the version of the installed TensorRT for any CUDA, None without one."""
    found = (installed_version(name) for name in DISTRIBUTIONS)
    return next((version for version in found if version is not None), None)


def major_mismatch(linked: str | None, installed: str | None) -> str | None:
    """Return why a provider linked to major `linked` cannot use version `installed`, or None."""
    if installed is None:
        return f"TensorRT {linked or ''}".rstrip() + " is not installed"
    if linked is not None and installed.split(".")[0] != linked:
        return f"its provider needs TensorRT {linked}, and {installed} is installed"
    return None


def _handle(nvml: Any, visible: str) -> Any:
    first = visible.split(",", maxsplit=1)[0].strip()
    if first.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(first))
    if not first or first.startswith("-"):
        raise _no_gpu(f"CUDA_VISIBLE_DEVICES={visible} hides every GPU")
    return nvml.nvmlDeviceGetHandleByUUID(first)


def _no_gpu(reason: str) -> MlctlError:
    return MlctlError(
        ErrorCode.PROVIDER_UNAVAILABLE,
        f"no NVIDIA GPU: {reason}",
        "Serve on a machine with an NVIDIA GPU and its driver; in a container set "
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility. `mlctl doctor` shows what it finds.",
    )
