"""Requests to the tests' tiny bundle, as `tests.support.bundles.make_bundle` writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from loadtest.inputs import post

FEATURES = 64


def requests(row: np.ndarray) -> Mapping[str, bytes]:
    """The request bytes of each way to ask for `row`, float32 [1, features]."""
    tensor = {"name": "x", "shape": list(row.shape), "datatype": "FP32"}
    whole = json.dumps({"inputs": [{**tensor, "data": row.ravel().tolist()}]}).encode()
    size = {"parameters": {"binary_data_size": row.nbytes}}
    wanted = [{"name": "y", "parameters": {"binary_data": True}}]
    head = json.dumps({"inputs": [{**tensor, **size}], "outputs": wanted}).encode()
    path, plain = "/v2/models/tiny/infer", {"Host": "127.0.0.1", "Content-Type": "application/json"}
    binary = {
        "Host": "127.0.0.1",
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(head)),
    }
    return {
        "V2 binary": post(path, head + row.tobytes(), binary),
        "V2 JSON": post(path, whole, plain),
        "/predict JSON": post("/predict", json.dumps({"x": row.tolist()}).encode(), plain),
    }
