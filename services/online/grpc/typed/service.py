"""The typed services of a server's models: the same core, limits, errors and metrics as V2's."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from mlctl.services.online.batching.executor import Answer
from mlctl.services.online.grpc.models import GrpcModel, GrpcModels, RequestContext
from mlctl.services.online.grpc.typed.codec import TypedCodec
from mlctl.services.online.grpc.typed.descriptors import make_file
from mlctl.services.online.grpc.typed.layout import lay_out
from mlctl.services.online.grpc.unary import infer_handler
from mlctl.services.online.openapi.model import describe
from mlctl.services.protocol.wire import InferRequest

METHOD = "Predict"
logger = logging.getLogger("mlctl.grpc")


class TypedService:
    """The service of one model: its `name`, the `path` of its method, and the `handler` of that.

    `file` is the descriptor for reflection.
    """

    def __init__(self, models: GrpcModels, model: GrpcModel) -> None:
        served = model.served
        layout = lay_out(describe(served.name, served.digest, served.signature))
        codec = TypedCodec(layout, served.digest, served.signature)

        def decode(message: bytes, context: RequestContext) -> InferRequest:
            context.of(model)
            return codec.decode(message)

        def encode(_model: GrpcModel, _request: InferRequest, answer: Answer) -> Any:
            return codec.encode(answer.outputs)

        self.name = layout.service
        self.path = f"/{layout.service}/{METHOD}"
        self.file = make_file(layout)
        self.handler = infer_handler(models, decode, encode, codec.response)


def typed_services(models: GrpcModels) -> list[TypedService]:
    """Return the services of all models; models whose names give the same package have none."""
    services = [TypedService(models, model) for model in models.all]
    times = Counter(service.name for service in services)
    for name in (name for name, count in times.items() if count > 1):
        logger.warning("several models have the typed service name %s: none of them gets it", name)
    return [service for service in services if times[service.name] == 1]
