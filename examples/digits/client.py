"""Inference for one image over each protocol of a deployment."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

TIMEOUT_SECONDS = 10.0
Logits = NDArray[np.float32]


def infer_with_all(host: str, port: int, image: NDArray[np.float32]) -> dict[str, Logits]:
    """Return the logits for `image` [1, 1, 8, 8] by the name of the protocol."""
    return {
        "V2 HTTP": infer_v2_http(host, port, image),
        "V2 gRPC": infer_v2_grpc(host, port, image),
        "/predict": infer_predict(host, port, image),
    }


def infer_v2_http(host: str, port: int, image: NDArray[np.float32]) -> Logits:
    """Infer over the Open Inference Protocol, with JSON."""
    import httpx

    tensor = {"name": "image", "shape": image.shape, "datatype": "FP32"}
    answer = httpx.post(
        f"http://{host}:{port}/v2/models/digits/infer",
        json={"inputs": [{**tensor, "data": image.ravel().tolist()}]},
        timeout=TIMEOUT_SECONDS,
    )
    return np.array(answer.raise_for_status().json()["outputs"][0]["data"], np.float32)


def infer_v2_grpc(host: str, port: int, image: NDArray[np.float32]) -> Logits:
    """Infer over the Open Inference Protocol on gRPC, with raw tensor contents."""
    import grpc

    from mlctl.services.protocol.messages import SERVICE, methods

    infer = methods()["ModelInfer"]
    request = infer.request(model_name="digits", raw_input_contents=[image.tobytes()])
    request.inputs.add(name="image", datatype="FP32", shape=image.shape)
    with grpc.insecure_channel(f"{host}:{port}") as channel:  # type: ignore[no-untyped-call]
        call = channel.unary_unary(
            f"/{SERVICE}/{infer.name}",
            request_serializer=infer.request.SerializeToString,
            response_deserializer=infer.response.FromString,
        )
        answer = call(request, timeout=TIMEOUT_SECONDS)
    return np.frombuffer(answer.raw_output_contents[0], np.float32)


def infer_predict(host: str, port: int, image: NDArray[np.float32]) -> Logits:
    """Infer over BentoML's typed API, with JSON."""
    import httpx

    answer = httpx.post(
        f"http://{host}:{port}/predict",
        json={"image": image.tolist()},
        timeout=TIMEOUT_SECONDS,
    )
    return np.array(answer.raise_for_status().json(), np.float32).ravel()
