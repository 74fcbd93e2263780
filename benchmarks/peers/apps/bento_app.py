"""The model as a plain BentoML service: batchable, arrays as JSON."""

# No `from __future__ import annotations`: BentoML evaluates the annotations.
import os

import bentoml
import numpy as np
from runtime import open_model  # type: ignore[import-not-found]


@bentoml.service(traffic={"timeout": 30})  # type: ignore[operator]
class Bench:
    """Run the model on batches of rows."""

    def __init__(self) -> None:
        self.session = open_model()
        self.dtype = np.dtype(os.environ["BENCH_DTYPE"])

    @bentoml.api(batchable=True, max_batch_size=64, max_latency_ms=10_000)
    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return `y` for `x`, both [rows, width]."""
        (y,) = self.session.run(None, {"x": x.astype(self.dtype, copy=False)})
        result: np.ndarray = y
        return result
