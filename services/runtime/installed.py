"""Which ONNX Runtime is installed, told without importing it.

onnxruntime and onnxruntime-gpu install the same files: with both, either may have
overwritten the other, so that is refused before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Callable

from bundle.errors import ErrorCode, MlctlError
from bundle.packages import RUNTIMES, install_hint, installed_version


def require_onnxruntime(installed: Callable[[str], bool] | None = None) -> None:
    """Raise RUNTIME_MISSING or RUNTIME_CONFLICT unless exactly one ONNX Runtime is installed.

    `installed` tells whether a distribution is; by default this environment is asked.
    """
    present = installed or (lambda name: installed_version(name) is not None)
    found = [name for name in RUNTIMES if present(name)]
    if not found:
        raise MlctlError(
            ErrorCode.RUNTIME_MISSING,
            "ONNX Runtime is not installed",
            f"{install_hint('cpu')} (gpu for CUDA)",
        )
    if len(found) > 1:
        raise MlctlError(ErrorCode.RUNTIME_CONFLICT, f"{' and '.join(found)} are both installed")
