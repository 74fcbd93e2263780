"""Import onnxruntime-genai, which runs causal language models."""

from __future__ import annotations

from typing import Any

from bundle.errors import ErrorCode, MlctlError
from bundle.packages import install_hint


def import_genai() -> Any:
    """Return the module, with its telemetry off; RUNTIME_MISSING if it is not installed."""
    try:
        import onnxruntime_genai
    except ImportError as error:
        raise MlctlError(
            ErrorCode.RUNTIME_MISSING,
            "language models need the package onnxruntime-genai, which is not installed",
            install_hint("generate"),
        ) from error
    onnxruntime_genai.disable_telemetry_events()
    return onnxruntime_genai
