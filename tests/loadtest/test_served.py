"""Load on a real server."""

from __future__ import annotations

import asyncio

import pytest

from mlctl.bento.packaging import BuiltBento
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.ports import free_ports
from mlctl.loadtest.figures import Figures
from mlctl.loadtest.runs import LoadProfile, MeasuredServer, Protocols, RequestShape, bench
from mlctl.loadtest.server import cpu_seconds
from mlctl.loadtest.target import Address, batches_so_far, parse_url
from tests.support.serving import Server

pytestmark = pytest.mark.slow

SHORT = 0.3


def http_of(server: Server) -> Address:
    return parse_url(server.url)


@pytest.mark.parametrize("binary", [True, False])
def test_bench__http_closed_loops__measures_each_load(
    server: Server, built: BuiltBento, binary: bool
) -> None:
    address = http_of(server)
    served = MeasuredServer(address, address, lambda: cpu_seconds(server.process.pid))
    reported: list[Figures] = []
    shape = RequestShape(binary=binary, rows=3, data=built.path / "src" / "model" / "golden.npz")
    model, found = bench(served, shape, LoadProfile(SHORT, clients=(1, 4)), reported.append)
    assert (model.name, model.version) == ("tiny", built.digest)
    assert reported == found
    assert [figures.clients for figures in found] == [1, 4]
    for figures in found:
        assert figures.answered > 10
        assert not figures.failed
        assert 0 < (figures.p50_ms or 0) <= (figures.p99_ms or 0)
        assert figures.queue_ms is not None
        assert (figures.infer_ms or 0) > 0
        assert (figures.rows_per_batch or 0) >= 3
        assert (figures.per_cpu_second or 0) > 0


def test_bench__grpc_open_loop__measures_the_rate(server: Server) -> None:
    address = Address("127.0.0.1", server.grpc_port, tls=False, headers={})
    shape = RequestShape(protocol=Protocols.GRPC, model="tiny")
    _, (figures,) = bench(MeasuredServer(address), shape, LoadProfile(SHORT, rate=100.0))
    assert (figures.rate, figures.clients, figures.failed) == (100.0, None, 0)
    assert figures.answered > 5
    assert figures.per_cpu_second is figures.rows_per_batch is None


def test_bench__grpc_closed_loop__shares_connections(server: Server) -> None:
    address = Address("127.0.0.1", server.grpc_port, tls=False, headers={})
    _, (figures,) = bench(
        MeasuredServer(address),
        RequestShape(protocol=Protocols.GRPC),
        LoadProfile(SHORT, clients=(20,)),
    )
    assert figures.answered >= 20
    assert not figures.failed


@pytest.mark.parametrize("protocol", Protocols)
def test_bench__rejected_requests__count_by_their_code(server: Server, protocol: Protocols) -> None:
    grpc = protocol is Protocols.GRPC
    address = Address("127.0.0.1", server.grpc_port if grpc else server.port, False, {})
    shape = RequestShape(protocol=protocol, rows=10_000)  # above the server's limit of bytes
    _, (figures,) = bench(MeasuredServer(address), shape, LoadProfile(0.2, clients=(1,)))
    assert not figures.answered
    (code,) = figures.errors
    assert code.startswith("RESOURCE_EXHAUSTED" if grpc else "413 payload_too_large")


@pytest.mark.parametrize("protocol", Protocols)
def test_bench__unknown_model__is_an_error(server: Server, protocol: Protocols) -> None:
    grpc = protocol is Protocols.GRPC
    address = Address("127.0.0.1", server.grpc_port if grpc else server.port, False, {})
    with pytest.raises(MlctlError, match="NOT_FOUND" if grpc else "404 no model 'other'") as caught:
        bench(
            MeasuredServer(address),
            RequestShape(protocol=protocol, model="other"),
            LoadProfile(SHORT),
        )
    assert caught.value.code is ErrorCode.UNAVAILABLE


def test_bench__no_server__is_unavailable() -> None:
    (port,) = free_ports(1)
    for protocol in Protocols:
        with pytest.raises(MlctlError, match="does not answer"):
            bench(
                MeasuredServer(Address("127.0.0.1", port, False, {})),
                RequestShape(protocol),
                LoadProfile(SHORT),
            )
    assert asyncio.run(batches_so_far(Address("127.0.0.1", port, False, {}))) is None


def test_parse_url__each_form__is_parsed_or_rejected() -> None:
    address = parse_url("http://[::1]:8000/", token="t" * 20)
    assert (address.host, address.port, address.tls) == ("::1", 8000, False)
    assert (address.url, address.headers) == (
        "http://[::1]:8000",
        {"authorization": f"Bearer {'t' * 20}"},
    )
    assert parse_url("https://models.example").authority == "models.example:443"
    assert parse_url("https://models.example").context is not None
    for wrong in ("ftp://h", "http://", "http://h:x", "http://h/v2", "http://h:70000"):
        with pytest.raises(MlctlError) as caught:
            parse_url(wrong)
        assert caught.value.code is ErrorCode.INVALID_INPUT
