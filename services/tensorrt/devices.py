"""Inside the worker: which GPU there is, and whether TensorRT can be loaded."""

from __future__ import annotations

import ctypes
from typing import Any

from services.tensorrt.builder import Unavailable, load_library
from services.tensorrt.cuda import CudaError, Driver

_NVML = "libnvidia-ml.so.1"
_VERSION_BYTES = 80  # NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE


def describe_device(flavour: str) -> dict[str, Any]:
    """The fields of `key.Device`; Unavailable says what is missing."""
    library = load_library(flavour)
    try:
        gpu = Driver().describe()
    except CudaError as error:
        raise Unavailable(str(error)) from error
    return {
        "name": gpu.name,
        "compute_capability": gpu.compute_capability,
        "driver": driver_version(),
        "tensorrt_version": library.__version__,
    }


def driver_version() -> str:
    """The version of the installed driver, such as 580.65.06, from NVML."""
    try:
        library = ctypes.CDLL(_NVML)
    except OSError as error:
        raise Unavailable(f"the driver's version is unknown: {error}") from error
    text = ctypes.create_string_buffer(_VERSION_BYTES)
    if library.nvmlInit_v2() or library.nvmlSystemGetDriverVersion(text, _VERSION_BYTES):
        raise Unavailable("the driver's version is unknown: NVML does not answer")
    return text.value.decode()
