"""The standard gRPC health service: SERVING while the models are ready and the server runs on.

Only the messages come from the package: its service cost watchers when one of several leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from grpc_health.v1.health_pb2 import DESCRIPTOR, HealthCheckRequest, HealthCheckResponse

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.grpc.http2.call import GrpcCall, MethodHandler
from mlctl.services.online.models.repository import Serving

HEALTH_SERVICE = DESCRIPTOR.services_by_name["Health"].full_name


class HealthService:
    """Answer for the whole server, whose name is "", and for each of `services`."""

    def __init__(self, serving: Serving, *services: str) -> None:
        self._serving = serving
        self._known = frozenset({"", *services})
        self._stopping = asyncio.Event()
        self._watches = 0

    def stop(self) -> None:
        """Report NOT_SERVING to all watchers, and end their streams."""
        self._stopping.set()

    def handlers(self) -> dict[str, MethodHandler]:
        """Return the handlers of the service's methods."""
        return {
            f"/{HEALTH_SERVICE}/{name}": MethodHandler(
                answer, HealthCheckResponse.SerializeToString, HealthCheckRequest.FromString
            )
            for name, answer in (("Check", self._check), ("Watch", self._watch))
        }

    async def _check(self, request: Any, _call: GrpcCall) -> Any:
        if request.service not in self._known:
            raise MlctlError(ErrorCode.NOT_FOUND, "this server has no such service")
        return self._answer()

    async def _watch(self, request: Any, _call: GrpcCall) -> AsyncIterator[Any]:
        # A watch needs no token and has no time limit; a client needs one for each connection.
        if self._watches >= self._serving.settings.max_connections:
            raise MlctlError(ErrorCode.QUEUE_FULL, "too many health watches")
        self._watches += 1
        try:
            if request.service not in self._known:
                yield HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)
                await self._stopping.wait()
                return
            last = None
            while True:
                turned = self._serving.turned  # before the answer, so that no change is missed
                answer = self._answer()
                if answer != last:
                    yield answer
                    last = answer
                if self._stopping.is_set():
                    return
                await self._change(turned)
        finally:
            self._watches -= 1

    async def _change(self, turned: asyncio.Event) -> None:
        """Return when the status may have changed."""
        tasks = [asyncio.create_task(event.wait()) for event in (self._stopping, turned)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    def _answer(self) -> Any:
        serving = self._serving.ready and not self._stopping.is_set()
        status = HealthCheckResponse.SERVING if serving else HealthCheckResponse.NOT_SERVING
        return HealthCheckResponse(status=status)
