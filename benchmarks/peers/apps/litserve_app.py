"""The model for LitServe."""

# No `from __future__ import annotations`: LitServe reads the annotations as they are.
import os
from typing import Any

import litserve  # type: ignore[import-not-found]
import numpy as np
from runtime import open_model  # type: ignore[import-not-found]


class Api(litserve.LitAPI):  # type: ignore[misc]
    """Rows in, rows out."""

    def setup(self, device: str) -> None:  # noqa: ARG002 - the library's signature
        self.session = open_model()
        self.dtype = np.dtype(os.environ["BENCH_DTYPE"])

    # An annotation would change what the library passes.
    def decode_request(self, request):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
        return np.asarray(request["x"][0], self.dtype)

    def batch(self, inputs: list[np.ndarray]) -> np.ndarray:
        return np.stack(inputs)

    def predict(self, x: np.ndarray) -> np.ndarray:
        (y,) = self.session.run(None, {"x": x})
        answer: np.ndarray = y
        return answer

    def unbatch(self, output: np.ndarray) -> list[np.ndarray]:
        return list(output)

    def encode_response(self, output: np.ndarray) -> dict[str, Any]:
        return {"y": [output.tolist()]}


if __name__ == "__main__":
    server = litserve.LitServer(
        Api(max_batch_size=64, batch_timeout=0.0005), accelerator="cpu", workers_per_device=1
    )
    server.run(
        host="127.0.0.1",
        port=int(os.environ["BENCH_PORT"]),
        num_api_servers=1,
        generate_client_file=False,
        log_level="warning",
    )
