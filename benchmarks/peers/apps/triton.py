"""The model for Triton's Python backend, whose interpreter needs the search path set here."""

from __future__ import annotations

import os
import sys
from typing import Any

# The backend ignores PYTHONPATH.
sys.path[:0] = os.environ["BENCH_PATH"].split(os.pathsep)

import numpy as np  # noqa: E402 - the path comes first
import triton_python_backend_utils as pb  # type: ignore[import-not-found] # noqa: E402
from runtime import open_model  # type: ignore[import-not-found] # noqa: E402


class TritonPythonModel:
    """Run the requests of one dynamic batch as one call."""

    def initialize(self, _: Any) -> None:
        self.session = open_model()

    def execute(self, requests: list[Any]) -> list[Any]:
        parts = [pb.get_input_tensor_by_name(each, "x").as_numpy() for each in requests]
        (y,) = self.session.run(None, {"x": parts[0] if len(parts) == 1 else np.concatenate(parts)})
        responses, start = [], 0
        for part in parts:
            end = start + len(part)
            responses.append(pb.InferenceResponse(output_tensors=[pb.Tensor("y", y[start:end])]))
            start = end
        return responses
