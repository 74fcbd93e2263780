"""One measurement: the requests, a warm-up, the load, and the figures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import uvloop

from mlctl.bundle.arrays import Arrays
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.loadtest.figures import Figures, LatencyRecord, ServerUse, summarize
from mlctl.loadtest.grpc_load import GrpcTarget
from mlctl.loadtest.http_load import HttpTarget
from mlctl.loadtest.inputs import given_rows, grpc_request, http_request, random_rows
from mlctl.loadtest.loops import OpenLoop, RequestSender, closed_loop
from mlctl.loadtest.target import Address, RemoteModel, batches_so_far, describe_grpc, describe_http

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_WARM_UP_SECONDS = 1.0


class Protocols(StrEnum):
    """The protocol of the requests."""

    HTTP = "http"
    GRPC = "grpc"


@dataclass(frozen=True, slots=True)
class RequestShape:
    """The requests: `rows` rows each, from the file `data` or else drawn at random.

    Dynamic dimensions of drawn inputs have the size `length`. `binary` chooses binary data or JSON
    over HTTP; gRPC always sends raw contents. `model` is None for the server's only model.
    """

    protocol: Protocols = Protocols.HTTP
    binary: bool = True
    rows: int = 1
    length: int = 16
    data: str | Path | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class LoadProfile:
    """The load: a closed loop for each number of `clients`, or an open loop at `rate`."""

    seconds: float = 5.0
    clients: Sequence[int] = (1, 16, 64)
    rate: float | None = None


class Connector(Protocol):
    """Opens senders: an `HttpTarget` or a `GrpcTarget`."""

    async def connect(self) -> RequestSender: ...


@dataclass(frozen=True, slots=True)
class MeasuredServer:
    """A server to measure, with the address of its metrics if that is known.

    `cpu_seconds` returns the CPU time that its processes have used, `memory_bytes` their memory,
    if they run on this machine. `ready_seconds` is the time it took to start, `log` its output.
    """

    address: Address
    metrics: Address | None = None
    cpu_seconds: Callable[[], float] | None = None
    memory_bytes: Callable[[], int] | None = None
    ready_seconds: float | None = None
    log: Path | None = None


def bench(
    served: MeasuredServer,
    shape: RequestShape,
    load: LoadProfile,
    report: Callable[[Figures], None] = lambda _figures: None,
) -> tuple[RemoteModel, list[Figures]]:
    """Return the model, as its server describes it, and the figures of each load in turn.

    `report` gets the figures of each load when it ends. Runs an event loop of its own. UNAVAILABLE
    if the server does not answer, INVALID_INPUT for inputs that do not match the model.
    """

    async def main() -> tuple[RemoteModel, list[Figures]]:
        model = await _describe(served.address, shape)
        found = []
        async with _target(served.address, shape, model) as target:
            for clients in load.clients if load.rate is None else (None,):
                figures = await _measure_one(served, target, load, clients)
                report(figures)
                found.append(figures)
        return model, found

    return uvloop.run(main())


def first_answer(served: MeasuredServer, shape: RequestShape) -> float:
    """Return the seconds from the first request on a new connection to its answer.

    Runs an event loop of its own. UNAVAILABLE if the server rejects the request.
    """

    async def main() -> float:
        model = await _describe(served.address, shape)
        record = LatencyRecord()
        async with _target(served.address, shape, model) as target, _closed(target, 1) as run:
            seconds = await run(0.0, record)
        if record.errors:
            raise MlctlError(
                ErrorCode.UNAVAILABLE, f"the first request failed: {next(iter(record.errors))}"
            )
        return seconds

    return uvloop.run(main())


async def _describe(address: Address, shape: RequestShape) -> RemoteModel:
    describe = describe_grpc if shape.protocol is Protocols.GRPC else describe_http
    return await describe(address, shape.model)


async def _measure_one(
    served: MeasuredServer, target: Connector, load: LoadProfile, clients: int | None
) -> Figures:
    warm_up = min(_WARM_UP_SECONDS, load.seconds)
    async with _loop(target, load.rate, clients) as run:
        await run(warm_up, LatencyRecord())
        before = await _use(served)
        record = LatencyRecord()
        seconds = await run(load.seconds, record)
        memory = None if served.memory_bytes is None else served.memory_bytes()
        use = replace(_difference(before, await _use(served)), memory_bytes=memory)
    return summarize(record, seconds, clients=clients, rate=load.rate, use=use)


Run = Callable[[float, LatencyRecord], Awaitable[float]]


def _loop(
    target: Connector, rate: float | None, clients: int | None
) -> AbstractAsyncContextManager[Run]:
    return _open(target, rate) if rate is not None else _closed(target, clients or 1)


@asynccontextmanager
async def _closed(target: Connector, clients: int) -> AsyncIterator[Run]:
    senders: list[RequestSender] = []
    try:
        while len(senders) < clients:
            senders.append(await _connect(target, len(senders)))
        yield partial(closed_loop, senders)
    finally:
        for sender in senders:
            sender.close()


async def _connect(target: Connector, before: int) -> RequestSender:
    try:
        return await target.connect()
    except OSError as error:
        raise MlctlError(
            ErrorCode.UNAVAILABLE, f"the server accepts no connection after {before} others"
        ) from error


@asynccontextmanager
async def _open(target: Connector, rate: float) -> AsyncIterator[Run]:
    loop = OpenLoop(target.connect, rate)
    try:
        yield loop.run
    finally:
        loop.close()


@asynccontextmanager
async def _target(
    address: Address, shape: RequestShape, model: RemoteModel
) -> AsyncIterator[Connector]:
    inputs = list(_inputs(shape, model))
    if shape.protocol is Protocols.HTTP:
        path = f"/v2/models/{model.name}/infer"
        headers = {"Host": address.authority, **address.headers}
        requests = [
            http_request(model.signature, each, path, headers, binary=shape.binary)
            for each in inputs
        ]
        yield HttpTarget(address.host, address.port, requests, address.context)
        return
    messages = [grpc_request(model.signature, each, model.name) for each in inputs]
    target = GrpcTarget(address.authority, messages, address.headers, tls=address.tls)
    try:
        yield target
    finally:
        await target.close()


def _inputs(shape: RequestShape, model: RemoteModel) -> Iterator[Arrays]:
    if shape.data is not None:
        return given_rows(model.signature, shape.data, shape.rows)
    return random_rows(model.signature, shape.rows, shape.length)


@dataclass(frozen=True, slots=True)
class _Totals:
    batches: tuple[float, float] | None
    cpu_seconds: float | None


async def _use(served: MeasuredServer) -> _Totals:
    batches = None if served.metrics is None else await batches_so_far(served.metrics)
    return _Totals(batches, None if served.cpu_seconds is None else served.cpu_seconds())


def _difference(before: _Totals, after: _Totals) -> ServerUse:
    rows = cpu = None
    if before.batches is not None and after.batches is not None:
        count = after.batches[1] - before.batches[1]
        rows = (after.batches[0] - before.batches[0]) / count if count > 0 else None
    if before.cpu_seconds is not None and after.cpu_seconds is not None:
        cpu = after.cpu_seconds - before.cpu_seconds
    return ServerUse(rows, cpu)
