"""The GPU that CUDA uses in this process, as NVIDIA's management library (NVML) describes it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from bundle.errors import ErrorCode, MlctlError


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU's name, its compute capability, such as "9.0", and the version of its driver."""

    name: str
    compute_capability: str
    driver: str


def find_gpu() -> Gpu:
    """Return the first GPU that CUDA_VISIBLE_DEVICES leaves; creates no CUDA context.

    PROVIDER_UNAVAILABLE says what is missing. NVML counts GPUs as CUDA does with
    CUDA_DEVICE_ORDER=PCI_BUS_ID; that matters only where they differ.
    """
    try:
        import pynvml
    except ImportError:
        raise _missing("the Python package nvidia-ml-py is not installed") from None
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
        raise _missing(f"NVML reports: {error}") from error
    return Gpu(name, f"{major}.{minor}", driver)


def _handle(nvml: Any, visible: str) -> Any:
    first = visible.split(",", maxsplit=1)[0].strip()
    if first.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(first))
    if not first or first.startswith("-"):
        raise _missing(f"CUDA_VISIBLE_DEVICES={visible} hides every GPU")
    return nvml.nvmlDeviceGetHandleByUUID(first)


def _missing(reason: str) -> MlctlError:
    return MlctlError(
        ErrorCode.PROVIDER_UNAVAILABLE,
        f"no NVIDIA GPU: {reason}",
        "Serve on a machine with an NVIDIA GPU and its driver; in a container with "
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility. `mlctl doctor` says what it finds.",
    )
