from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from bundle.sampling import Sampling
from bundle.verify import VerifiedBundle
from services.admin.app import MAX_BODY_BYTES, Admin, Sample, admin_app
from services.host import ModelHost, Phase
from services.secure.tokens import Access
from services.settings import Settings

TOKEN, ADMIN = "the-token-0123456789abcdef", "admin-token-0123456789abcdef"
Use = Callable[[httpx.AsyncClient, ModelHost], Awaitable[None]]


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    ours = logging.getLogger("mlctl")
    before = ours.level
    yield
    ours.setLevel(before)


def run(
    bundle: VerifiedBundle,
    use: Use,
    *,
    sample: Sample | None = None,
    access: Access | None = None,
    base_url: str = "http://127.0.0.1:9",
) -> None:
    async def main() -> None:
        settings = Settings(token=SecretStr(TOKEN), max_queue_rows=77)
        host = ModelHost(bundle, settings, registry=CollectorRegistry())
        await host.start()
        ticks = iter(range(100, 1000, 5))
        admin = Admin(host, sample, clock=lambda: float(next(ticks)))
        app: Any = admin_app(admin, access or Access())
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=base_url) as client:
            await use(client, host)
        await host.stop()

    asyncio.run(main())


def test_status(shared_bundle: VerifiedBundle) -> None:
    async def use(client: httpx.AsyncClient, host: ModelHost) -> None:
        answered = await client.get("/admin/status")
        status = answered.json()
        assert (status["model"], status["digest"]) == ("tiny", shared_bundle.digest)
        assert (status["state"], status["live"], status["uptime_seconds"]) == ("ready", True, 5)
        assert status["queue_rows"] == 0
        assert (status["limits"]["max_queue_rows"], status["limits"]["max_rows"]) == (77, 32)
        assert status["settings"]["max_queue_rows"] == 77
        assert {int(rows) for rows in status["batch_seconds"]} == set(host.costs) != set()
        assert all(seconds > 0 for seconds in status["batch_seconds"].values())
        assert not {"token", "otlp_endpoint"} & set(status["settings"])
        assert TOKEN not in answered.text

    run(shared_bundle, use)


def test_draining_is_told_and_answered_all_the_same(shared_bundle: VerifiedBundle) -> None:
    async def use(client: httpx.AsyncClient, host: ModelHost) -> None:
        import numpy as np

        for _ in range(2):  # saying it twice changes nothing
            assert (await client.post("/admin/drain")).json() == {"state": "draining"}
        assert (await client.get("/admin/status")).json()["state"] == "draining"
        answer = await host.infer({"x": np.ones((1, 4), np.float32)})
        assert answer.outputs["y"].tolist() == [[6, 6, 6, 6]]
        assert (await client.post("/admin/undrain")).json() == {"state": "ready"}
        assert (await client.get("/admin/status")).json()["state"] == "ready"
        await client.post("/admin/drain")
        await host.stop()
        assert (await client.post("/admin/undrain")).json() == {"state": Phase.STOPPING.value}
        assert not host.ready

    run(shared_bundle, use)


def test_the_log_level(shared_bundle: VerifiedBundle) -> None:
    async def use(client: httpx.AsyncClient, _host: ModelHost) -> None:
        found = await client.post("/admin/log-level", json={"level": "debug"})
        assert found.json() == {"level": "debug"}
        assert logging.getLogger("mlctl").level == logging.DEBUG
        assert (await client.get("/admin/status")).json()["log_level"] == "debug"
        for body in ({"level": "loud"}, {"level": 10}, {}, {"level": None}):
            wrong = await client.post("/admin/log-level", json=body)
            assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_input")

    run(shared_bundle, use)


def test_sampling_goes_through_the_seam(shared_bundle: VerifiedBundle, tmp_path: Path) -> None:
    told: list[Sampling] = []

    async def use(client: httpx.AsyncClient, _host: ModelHost) -> None:
        found = await client.put("/admin/sampling", json={"share": 0.25, "redact": ["x"]})
        assert (found.json()["share"], told) == (0.25, [Sampling(share=0.25, redact=("x",))])
        for text in ("{", '{"share": 2}', '{"folder": "/etc"}'):
            wrong = await client.put("/admin/sampling", content=text)
            assert wrong.json()["code"] == "invalid_input"
        assert len(told) == 1

    run(shared_bundle, use, sample=told.append)

    async def cannot(client: httpx.AsyncClient, _host: ModelHost) -> None:
        found = await client.put("/admin/sampling", json={"share": 1})
        assert (found.status_code, found.json()["code"]) == (403, "not_permitted")

    run(shared_bundle, cannot)

    def full(_sampling: Sampling) -> None:
        raise OSError(28, "No space left on device", str(tmp_path))

    async def fails(client: httpx.AsyncClient, _host: ModelHost) -> None:
        found = await client.put("/admin/sampling", json={"share": 1})
        assert (found.status_code, found.json()["code"]) == (500, "internal")
        assert str(tmp_path) not in found.text

    run(shared_bundle, fails, sample=full)


def test_other_paths_methods_and_sizes(shared_bundle: VerifiedBundle) -> None:
    async def use(client: httpx.AsyncClient, _host: ModelHost) -> None:
        for path in ("/", "/admin", "/admin/stop", "/v2", "/metrics"):
            found = await client.get(path)
            assert (found.status_code, found.json()["code"]) == (404, "not_found")
        found = await client.get("/admin/drain")
        assert (found.status_code, found.headers["allow"]) == (405, "POST")
        large = await client.post("/admin/log-level", content=b"x" * (MAX_BODY_BYTES + 1))
        assert (large.status_code, large.json()["code"]) == (413, "payload_too_large")

    run(shared_bundle, use)


def test_web_pages_reach_nothing(shared_bundle: VerifiedBundle) -> None:
    async def use(client: httpx.AsyncClient, host: ModelHost) -> None:
        page = {"origin": "https://example.com"}
        rebound = {"host": "rebound.example.com:9"}
        hosts = (rebound, {"host": ""}, {"host": "[::1"})
        two = [*rebound.items(), ("host", "localhost")]
        for headers in (page, {"origin": "null"}, *hosts, two):
            found = await client.post("/admin/drain", headers=headers)
            assert (found.status_code, found.json()["code"]) == (403, "not_permitted")
        for name in ("localhost", "127.0.0.1:9", "[::1]:9", "10.0.0.7"):
            assert (await client.get("/admin/status", headers={"host": name})).status_code == 200
        assert host.ready

    run(shared_bundle, use)


def test_the_admin_token_is_not_the_callers(shared_bundle: VerifiedBundle) -> None:
    async def use(client: httpx.AsyncClient, _host: ModelHost) -> None:
        for token in (TOKEN, ADMIN[:-1], ""):
            headers = {"authorization": f"Bearer {token}"}
            for path in ("/admin/status", "/readyz", "/nothing"):
                assert (await client.get(path, headers=headers)).status_code == 401
        good = {"authorization": f"Bearer {ADMIN}"}
        assert (await client.get("/admin/status", headers=good)).status_code == 200

    run(shared_bundle, use, access=Access(ADMIN), base_url="http://ops.example.com")
