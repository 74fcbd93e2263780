"""Generated text over gRPC server streaming, read with tritonclient's generated stubs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc.aio
from prometheus_client import CollectorRegistry

from mlctl.bundle.verify import VerifiedBundle
from mlctl.services.online.grpc.server import GrpcServer
from mlctl.services.online.models.generator import ServedGenerator
from mlctl.services.online.settings import ServerSettings
from tests.support.tiny_llm import ANSWERS

pytestmark = pytest.mark.slow
GRPC: Any = tritonclient.grpc
AIO: Any = tritonclient.grpc.aio


async def test_stream_infer__prompts__each_answer_comes_in_pieces_and_a_failure_ends_only_its_own(
    tiny_llm_bundle: VerifiedBundle,
) -> None:
    registry = CollectorRegistry()
    model = ServedGenerator(tiny_llm_bundle, ServerSettings(), registry=registry)
    await model.start()
    server = GrpcServer(model, "127.0.0.1", 0)
    await server.start()
    prompts = ["Count:", "", "What colour is the cat?"]

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for number, prompt in enumerate(prompts):
            tensor = GRPC.InferInput("prompt", [1], "BYTES")
            tensor.set_data_from_numpy(np.array([prompt.encode()], object))
            yield {"model_name": "tiny-llm", "inputs": [tensor], "request_id": str(number)}

    pieces: dict[str, list[str]] = {"0": [], "2": []}
    errors = []
    async with AIO.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        async for result, error in client.stream_infer(requests()):
            if error is None:
                pieces[result.get_response().id].append(result.as_numpy("text").item().decode())
            else:
                errors.append(error.message())
    await server.stop(1)
    await model.stop()

    assert ["".join(texts) for texts in pieces.values()] == [
        ANSWERS[prompts[0]],
        ANSWERS[prompts[2]],
    ]
    assert all(len(texts) > 1 for texts in pieces.values())
    assert len(errors) == 1
    assert "the prompt is empty" in errors[0]
    assert (
        registry.get_sample_value("mlctl_time_to_first_token_seconds_count", {"model": "tiny-llm"})
        == 2
    )
