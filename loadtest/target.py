"""A server to measure: its address, the metadata of its model, and its counters."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import grpc
import httpx
from pydantic import ValidationError

from mlctl.bundle.tensors import Signature
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.loadtest.grpc_load import open_channel
from mlctl.services.protocol.messages import SERVICE, methods
from mlctl.services.protocol.wire import invalid

_TIMEOUT_SECONDS = 10.0
_ROWS, _BATCHES = "mlctl_batch_rows_sum", "mlctl_batch_rows_count"


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server; `headers` are sent with every request."""

    host: str
    port: int
    tls: bool
    headers: Mapping[str, str]

    @property
    def authority(self) -> str:
        """HOST:PORT, with brackets around an IPv6 address."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL without a path."""
        return f"{'https' if self.tls else 'http'}://{self.authority}"

    @property
    def context(self) -> ssl.SSLContext | None:
        """The TLS context with the system's authorities; None without TLS."""
        return ssl.create_default_context() if self.tls else None


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model as its server describes it."""

    name: str
    version: str
    signature: Signature


def parse_url(url: str, token: str | None = None) -> Address:
    """Parse the URL of a server (http or https, no path); INVALID_INPUT."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise invalid(f"{url!r} is not a URL") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/"):
        raise invalid(f"{url!r} is not the URL of a server", "Write http://HOST:PORT.")
    tls = parts.scheme == "https"
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return Address(parts.hostname, port or (443 if tls else 80), tls, headers)


async def describe_http(address: Address, name: str | None) -> RemoteModel:
    """Return the metadata of the model `name`, or of the only one; UNAVAILABLE, INVALID_INPUT."""
    async with _client(address) as client:
        if name is None:
            listed = await _request(client, "POST", "/v2/repository/index")
            name = _only([str(entry["name"]) for entry in listed])
        return _read(await _request(client, "GET", f"/v2/models/{name}"))


async def describe_grpc(address: Address, name: str | None) -> RemoteModel:
    """As `describe_http`, over gRPC."""
    async with open_channel(address.authority, tls=address.tls) as channel:
        if name is None:
            index = await _call(channel, address, "RepositoryIndex")
            name = _only([entry.name for entry in index.models])
        found = await _call(channel, address, "ModelMetadata", name=name)
    sides = {
        side: [
            {"name": each.name, "datatype": each.datatype, "shape": list(each.shape)}
            for each in getattr(found, side)
        ]
        for side in ("inputs", "outputs")
    }
    return _read({"name": found.name, "versions": list(found.versions), **sides})


async def batches_so_far(address: Address) -> tuple[float, float] | None:
    """Return the rows and batches of all workers since their start; None without metrics."""
    try:
        async with _client(address) as client:
            answer = await client.get("/metrics")
    except httpx.TransportError:
        return None
    if answer.status_code != 200:
        return None
    totals = {_ROWS: 0.0, _BATCHES: 0.0}
    for line in answer.text.splitlines():
        name, _, value = line.rpartition(" ")
        name = name.partition("{")[0]
        if name in totals:
            totals[name] += float(value)
    return totals[_ROWS], totals[_BATCHES]


def _client(address: Address) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=address.url,
        headers=dict(address.headers),
        timeout=_TIMEOUT_SECONDS,
        verify=address.context or False,
        trust_env=False,
    )


async def _request(client: httpx.AsyncClient, method: str, path: str) -> Any:
    try:
        answer = await client.request(method, path)
    except httpx.TransportError as error:
        raise _unreachable(str(client.base_url), str(error) or type(error).__name__) from error
    try:
        document = answer.json()
    except ValueError:
        document = None
    if answer.status_code != 200 or document is None:
        stated = document.get("error") if isinstance(document, dict) else None
        raise _unreachable(str(client.base_url), f"{path}: {answer.status_code} {stated or ''}")
    return document


async def _call(channel: Any, address: Address, name: str, /, **fields: Any) -> Any:
    method = methods()[name]
    call = channel.unary_unary(f"/{SERVICE}/{name}")
    request = method.request(**fields).SerializeToString()
    metadata = tuple(address.headers.items())
    try:
        found = await call(request, metadata=metadata, timeout=_TIMEOUT_SECONDS)
    except grpc.aio.AioRpcError as error:
        raise _unreachable(address.authority, f"{name}: {error.code().name}") from error
    return method.response.FromString(found)


def _only(names: list[str]) -> str:
    if len(set(names)) != 1:
        listed = ", ".join(sorted(set(names))) or "none"
        raise invalid(f"no model is named; the server has: {listed}", "Name one: URL/NAME.")
    return names[0]


def _read(document: Any) -> RemoteModel:
    try:
        sides = {
            side: [
                {"name": each["name"], "dtype": each["datatype"], "shape": each["shape"]}
                for each in document[side]
            ]
            for side in ("inputs", "outputs")
        }
        version = str((document.get("versions") or [""])[-1])
        return RemoteModel(str(document["name"]), version, Signature.model_validate(sides))
    except (KeyError, TypeError, ValidationError) as error:
        raise invalid("the server's metadata of the model does not follow the protocol") from error


def _unreachable(address: str, reason: str) -> MlctlError:
    return MlctlError(
        ErrorCode.UNAVAILABLE,
        f"{address} does not answer as a server of the V2 protocol: {reason.strip()}",
        "Check that it runs, and its address; --protocol grpc needs the gRPC port.",
    )
