"""The models behind one gRPC server, each with its codec and the observability of its calls."""

from __future__ import annotations

from time import perf_counter
from typing import NamedTuple

from mlctl.services.online.grpc.codec import GrpcCodec
from mlctl.services.online.grpc.http2.head import CallHead
from mlctl.services.online.grpc.http2.observed_calls import GrpcCalls
from mlctl.services.online.models.repository import Serving
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.observability.calls import GRPC


class GrpcModel(NamedTuple):
    """One model as gRPC serves it."""

    served: ServedModel
    codec: GrpcCodec
    calls: GrpcCalls


class GrpcModels:
    """All models of a server; calls that name no model count for `default`."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._by_name = {
            served.name: GrpcModel(
                served, GrpcCodec(served.name, served.digest, served.signature), GrpcCalls(served)
            )
            for served in serving.models
        }
        self.default = self._by_name[serving.models[0].name]
        self.access = serving.access
        self.inflight = serving.inflight
        self.settings = serving.settings
        # The largest limit of a model; each one's own is checked when the model is known.
        self.max_body_bytes = serving.max_body_bytes

    @property
    def all(self) -> list[GrpcModel]:
        """The default model, and then the others."""
        return list(self._by_name.values())

    def find(self, name: str, version: str) -> GrpcModel:
        """Return the model `name`; MODEL_NOT_FOUND."""
        return self._by_name[self._serving.find(name, version).name]


class RequestContext:
    """One infer request of `client`, of `size` bytes, and the model that it counts for.

    That is the default model until the message has been read.
    """

    __slots__ = ("client", "head", "model", "size", "started")

    def __init__(self, models: GrpcModels, head: CallHead, client: str, size: int) -> None:
        self.head, self.client, self.size, self.started = head, client, size, perf_counter()
        self.model = models.default

    def of(self, model: GrpcModel) -> GrpcModel:
        """Count the request for `model`, and return that; PAYLOAD_TOO_LARGE above its limit."""
        self.model = model
        model.served.check_size(self.size)
        return model

    def ended(self, failure: BaseException | None) -> None:
        """Count and report the end of a request that has no answer of its own."""
        self.model.served.count(GRPC, failure, self.client)
        self.model.calls.ended(self.head, self.size, self.started, failure, self.client)
