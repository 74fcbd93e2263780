"""The service over HTTP, on real servers of metrics and a real database."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from mlctl.core.errors import MlctlError
from mlctl.rollout.domain.spec import RolloutSpec
from mlctl.rollout.drivers.kubernetes.meter import Scrape
from mlctl.rollout.gate_service.app import gate_app
from mlctl.rollout.gate_service.service import GateService
from mlctl.rollout.gate_service.sources import ServiceName, UrlSource, parse_sources
from mlctl.rollout.gate_service.store import SessionStore, Terms
from tests.support.clock import ManualClock
from tests.support.kube import FakePod

PAIR = {"blue": "stable", "green": "canary", "max_p99_ms": "200", "min_requests": "20"}


@dataclass
class World:
    """Two pods with metrics, and the service that may ask them."""

    pods: dict[str, FakePod]
    sources: dict[str, UrlSource]
    path: Path
    clock: ManualClock
    limit: int = 3

    def client(self) -> TestClient:
        """A service that was just started."""
        store = SessionStore(self.path, self.clock, limit=self.limit, expire_seconds=3600.0)
        return TestClient(gate_app(GateService(self.sources, store)))

    def serve(self, *, errors: int = 0) -> None:
        self.pods["stable"].serve(100)
        self.pods["canary"].serve(100 - errors)
        self.pods["canary"].serve(errors, outcome="internal")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    pods = {name: FakePod(name, "a" * 64) for name in ("stable", "canary")}
    servers = {name: _metrics(pod) for name, pod in pods.items()}
    threads = [
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        for server in servers.values()
    ]
    for thread in threads:
        thread.start()
    sources = {
        name: UrlSource((f"http://localhost:{server.server_port}/metrics",))
        for name, server in servers.items()
    }
    yield World(pods, sources, tmp_path / "sessions.db", ManualClock(1000.0))
    for server in servers.values():
        server.shutdown()
        server.server_close()
    for thread in threads:
        thread.join()


def _metrics(pod: FakePod) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        wbufsize = -1

        def do_GET(self) -> None:
            code, body = pod.get(self.path)
            self.send_response(code)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def looks(world: World, ask: Callable[[], Any], times: int, *, errors: int = 0) -> list[Any]:
    found = []
    for _ in range(times):
        world.serve(errors=errors)
        found.append(ask())
    return found


def result(client: TestClient, name: str = "uid-1", **params: str) -> dict[str, Any]:
    answer = client.get(f"/gates/{name}", params={**PAIR, **params})
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def test_gate__good_canary__succeeds_once_proved(world: World) -> None:
    client = world.client()
    found = looks(world, lambda: result(client, weight="50"), 25)
    assert found[0]["result"] == "inconclusive"
    assert found[-1]["result"] == "success"
    assert found[-1]["n"] == 24 * 100
    assert "failure" not in {each["result"] for each in found}


def test_gate__bad_canary__stays_failed_after_a_restart(world: World) -> None:
    client = world.client()
    found = looks(world, lambda: result(client), 9, errors=40)
    assert found[-1]["result"] == "failure"
    assert found[-1]["gate"] == "errors_vs_limit"
    restarted = world.client()
    assert result(restarted) == found[-1]


def test_gate__restarted_service__keeps_its_evidence(world: World) -> None:
    client = world.client()
    looks(world, lambda: result(client, final="false"), 5)
    before = world.client()
    # The first tick of a new process only begins to count.
    assert result(before, final="false")["n"] == 400
    world.serve()
    assert result(before, final="false")["n"] == 500


def test_gate__no_traffic__is_inconclusive(world: World) -> None:
    client = world.client()
    assert {result(client)["result"] for _ in range(10)} == {"inconclusive"}


def test_gate__dead_servers__fail_or_are_inconclusive(world: World) -> None:
    client = world.client()
    world.pods["canary"].answers = False
    assert [result(client)["result"] for _ in range(3)][-1] == "failure"
    world.pods["stable"].answers = False
    found = result(client, "uid-2")
    assert (found["result"], found["why"]) == ("inconclusive", "the counts could not be read")


@pytest.mark.parametrize(
    ("params", "status", "code"),
    [
        ({"blue": "http://169.254.169.254/latest"}, 404, "not_found"),
        ({"green": "other"}, 404, "not_found"),
        ({"green": "stable"}, 400, "invalid_input"),
        ({"green": ""}, 400, "invalid_input"),
        ({"weight": "101"}, 400, "invalid_input"),
        ({"weight": "-1"}, 400, "invalid_input"),
        ({"final": "perhaps"}, 400, "invalid_input"),
        ({"max_p99_ms": "fast"}, 400, "invalid_input"),
        ({"max_p99_ms": "nan"}, 400, "invalid_input"),
        ({"max_eror_rate": "0.1"}, 400, "invalid_input"),
        ({"slo": "no-such"}, 400, "invalid_input"),
    ],
)
def test_gate__invalid_parameter__is_rejected_with_its_code(
    world: World, params: dict[str, str], status: int, code: str
) -> None:
    answer = world.client().get("/gates/uid-1", params={**PAIR, **params})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_gate__other_limits_in_a_session__are_rejected(world: World) -> None:
    client = world.client()
    result(client)
    answer = client.get("/gates/uid-1", params={**PAIR, "max_p99_ms": "500"})
    assert answer.status_code == 400
    assert "began with other" in answer.json()["error"]["message"]
    assert client.delete("/gates/uid-1").status_code == 200
    assert client.delete("/gates/uid-1").status_code == 404
    assert client.get("/gates/uid-1", params={**PAIR, "max_p99_ms": "500"}).status_code == 200


def test_sessions__more_than_the_limit__are_rejected_until_one_expires(world: World) -> None:
    client = world.client()
    for number in range(3):
        result(client, f"uid-{number}")
    assert client.get("/gates/uid-4", params=PAIR).status_code == 503
    world.clock.advance(3601.0)
    assert client.get("/gates/uid-4", params=PAIR).status_code == 200
    assert client.get("/gates/..%2fetc", params=PAIR).status_code in (400, 404)


def test_sessions__expired__begin_again(world: World) -> None:
    client = world.client()
    looks(world, lambda: result(client, weight="50"), 4)
    world.clock.advance(3601.0)
    world.serve()
    swapped = {**PAIR, "blue": "canary", "green": "stable"}
    assert client.get("/gates/uid-1", params=swapped).json()["n"] == 0
    world.pods["canary"].serve(30)
    world.pods["stable"].serve(70)
    assert client.get("/gates/uid-1", params=swapped).json()["n"] == 70


def test_sessions__deleted_during_an_evaluation__stay_deleted(world: World) -> None:
    store = SessionStore(world.path, world.clock, limit=3, expire_seconds=3600.0)
    service = GateService(world.sources, store)
    terms = Terms("stable", "canary", RolloutSpec())
    service.evaluate("uid-1", terms, weight=None, final=False)
    source, scrape = world.sources["canary"], world.sources["canary"].scrape

    def meanwhile() -> Scrape:
        service.forget("uid-1")
        return scrape()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "scrape", meanwhile)
        service.evaluate("uid-1", terms, weight=None, final=False)
    with pytest.raises(MlctlError, match="no session"):
        service.forget("uid-1")


def hook(client: TestClient, name: str, checksum: str = "7d9") -> int:
    body = {
        "name": "shop",
        "namespace": "prod",
        "phase": "Progressing",
        "checksum": checksum,
        "metadata": PAIR,
    }
    return client.post(f"/flagger/{name}", json=body).status_code


def test_flagger__each_hook__answers_by_status(world: World) -> None:
    client = world.client()
    assert hook(client, "rollout") == 200
    assert hook(client, "confirm-traffic-increase") == 409
    assert hook(client, "confirm-promotion") == 409
    assert hook(client, "rollback") == 409
    looks(world, lambda: hook(client, "rollout"), 4)
    assert hook(client, "confirm-traffic-increase") == 200
    assert hook(client, "confirm-promotion") == 409
    assert looks(world, lambda: hook(client, "confirm-promotion"), 25)[-1] == 200


def test_flagger__bad_canary__rolls_back_and_a_new_revision_begins_again(world: World) -> None:
    client = world.client()
    assert looks(world, lambda: hook(client, "rollout"), 9, errors=40)[-1] == 409
    assert hook(client, "rollback") == 200
    assert hook(client, "rollout", checksum="8aa") == 200


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"name": "x"}', b"[" * 50_000, b" " * 70_000])
def test_flagger__invalid_body__is_rejected(world: World, body: bytes) -> None:
    answer = world.client().post("/flagger/rollout", content=body)
    assert answer.status_code == (413 if len(body) > 65536 else 400)


def test_app__unknown_hook__is_not_found(world: World) -> None:
    client = world.client()
    assert client.get("/healthz").json() == {"status": "ok"}
    assert hook(client, "no-such") == 404


def test_parse_sources__urls_and_services__are_grouped_by_name() -> None:
    entries = ("a=http://h:1/metrics", "a=http://h:2/metrics", "b=service:prod/shop-canary")
    assert parse_sources(entries) == {
        "a": ("http://h:1/metrics", "http://h:2/metrics"),
        "b": ServiceName("prod", "shop-canary"),
    }


def test_url_source__name_with_several_addresses__reads_each(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a headless Service: two addresses, and the same server's IPv6 one beside."""
    (url,) = world.sources["canary"]._urls
    port = int(url.split(":")[2].partition("/")[0])
    kinds = [
        (socket.AF_INET6, "::1"),
        (socket.AF_INET, "127.0.0.1"),
        (socket.AF_INET, "127.0.0.2"),
    ]
    entries = [(family, socket.SOCK_STREAM, 6, "", (at, port)) for family, at in kinds]
    source = UrlSource((f"http://shop-headless:{port}/metrics",))
    real = socket.getaddrinfo

    def resolve(host: str, *rest: Any, **more: Any) -> Any:
        return entries if host == "shop-headless" else real(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    world.pods["canary"].serve(7)
    found = source.scrape()
    assert {uid.partition("@")[2] for uid in found.present} == {"127.0.0.1", "127.0.0.2"}
    # Only the first one listens here.
    assert [each.requests for each in found.totals.values()] == [7]


@pytest.mark.parametrize(
    "entries",
    [
        ("a=http://h/m",),
        ("http://h/m", "b=http://h/m"),
        ("a=file:///etc/passwd", "b=http://h/m"),
        ("a=http://h:port/m", "b=http://h/m"),
        ("a=http://user:word@h/m", "b=http://h/m"),
        ("a=service:shop", "b=http://h/m"),
        ("a=service:n/s", "a=http://h/m", "b=http://h/m"),
    ],
)
def test_parse_sources__invalid_entry__is_rejected(entries: tuple[str, ...]) -> None:
    with pytest.raises(MlctlError):
        parse_sources(entries)
