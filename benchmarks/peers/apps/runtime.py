"""ONNX Runtime as every compared server uses it: one thread that does not spin."""

from __future__ import annotations

import importlib
import os
from typing import Any


def open_model() -> Any:
    """Open the model file $BENCH_MODEL; input `x`, output `y`."""
    onnxruntime: Any = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(
        os.environ["BENCH_MODEL"], options, providers=["CPUExecutionProvider"]
    )
