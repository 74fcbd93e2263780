"""The engine cache: engines are built once per key, on the machine that runs them.

The key names the entry, so an engine of another model, GPU, driver, version or profile
is never found; one that is damaged does not match its list and is built again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bundle.clock import Clock, SystemClock
from bundle.entries import Entry, Key, fetch_or_build
from bundle.errors import ErrorCode, MlctlError
from bundle.home import state_dir
from services.runtime.tensorrt.key import Device, timing_name
from services.runtime.tensorrt.process import Cause, WorkerError

_ROOT = ("cache", "tensorrt")


def fetch_engine(
    model: Path, key: Key, build: Callable[[Path], None], clock: Clock | None = None
) -> Entry:
    """The cache entry for `key`; `build` fills its directory if there is none.

    UNSUPPORTED_MODEL if TensorRT refuses the model, PROVIDER_UNAVAILABLE if it crashed
    or ran out of time.
    """
    try:
        return fetch_or_build(state_dir(*_ROOT, "engines"), key, build, clock or SystemClock())
    except WorkerError as error:
        raise _failed(model, error) from error


def timing_directory(device: Device) -> Path:
    """Where kernel timings of this GPU and version are kept, to make later builds faster."""
    return state_dir(*_ROOT, "timing", timing_name(device))


def _failed(model: Path, error: WorkerError) -> MlctlError:
    if error.cause is Cause.REFUSED:
        return MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            f"TensorRT cannot build an engine of {model.name}: {error.reason}",
            "Serve it with the provider cuda, or choose another recipe in `mlctl optimize`.",
        )
    return MlctlError(
        ErrorCode.PROVIDER_UNAVAILABLE,
        f"the TensorRT build of {model.name} failed: {error.reason}",
        "Allow more time with MLCTL_TRT_BUILD_TIMEOUT_S."
        if error.cause is Cause.TIMED_OUT
        else "Serve it with the provider cuda.",
    )
