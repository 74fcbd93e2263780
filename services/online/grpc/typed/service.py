"""The typed services of a server's models: the same core, limits, errors and metrics as V2's."""

from __future__ import annotations

import logging
from collections import Counter
from time import perf_counter
from typing import Any

from services.online.grpc.http2.call import GrpcCall, MethodHandler
from services.online.grpc.models import GrpcModel, GrpcModels, RequestContext
from services.online.grpc.typed.codec import TypedCodec
from services.online.grpc.typed.descriptors import make_file
from services.online.grpc.typed.layout import lay_out
from services.online.grpc.unary import ask, counted
from services.online.openapi.model import describe

METHOD = "Predict"
logger = logging.getLogger("mlctl.grpc")


class TypedService:
    """Answer the typed calls to one model."""

    def __init__(self, models: GrpcModels, model: GrpcModel) -> None:
        served = model.served
        self._models = models
        self._model = model
        self._layout = lay_out(describe(served.name, served.digest, served.signature))
        self._codec = TypedCodec(self._layout, served.digest, served.signature)

    @property
    def name(self) -> str:
        """The full name of the service."""
        return self._layout.service

    def file(self) -> Any:
        """Return the file descriptor for reflection."""
        return make_file(self._layout)

    @property
    def path(self) -> str:
        """The path of its method, as calls have it."""
        return f"/{self.name}/{METHOD}"

    def handler(self) -> MethodHandler:
        """Return the handler of its method."""
        return MethodHandler(self._answer, self._codec.response.SerializeToString)

    async def _answer(self, message: bytes, call: GrpcCall) -> Any:
        async def infer(context: RequestContext) -> Any:
            start = perf_counter()
            model = context.of(self._model)
            request = self._codec.decode(message)
            parse = perf_counter() - start
            return await ask(
                model,
                context,
                request,
                call,
                parse,
                lambda answer: self._codec.encode(answer.outputs),
            )

        return await counted(self._models, message, call, infer)


def typed_services(models: GrpcModels) -> list[TypedService]:
    """Return the services of all models; models whose names give the same package have none."""
    services = [TypedService(models, model) for model in models.all]
    times = Counter(service.name for service in services)
    for name in (name for name, count in times.items() if count > 1):
        logger.warning("several models have the typed service name %s: none of them gets it", name)
    return [service for service in services if times[service.name] == 1]
