"""`GET /openapi.json`, of a real server and of one with several models."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from mlctl.bento.clients.source import find_source
from mlctl.bento.packaging import BuiltBento
from mlctl.services.layout.bento_layout import combine_bundles
from mlctl.services.online.http.openapi_page import OpenApiPage
from mlctl.services.online.models.repository import serving_of
from mlctl.services.online.openapi.document import document, to_text
from mlctl.services.online.settings import ServerSettings
from tests.support.bundles import make_bundle
from tests.support.serving import Server


@pytest.mark.slow
def test_openapi_page__real_server__returns_its_document(server: Server, built: BuiltBento) -> None:
    model = find_source(server.url)
    answer = httpx.get(f"{server.url}/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    assert answer.text == to_text(document([model], version=built.digest, token=False))
    refused = httpx.post(f"{server.url}/openapi.json")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")


def test_openapi_page__several_models__describes_each(tmp_path: Path) -> None:
    packed = combine_bundles(
        [make_bundle(tmp_path / name, name=name) for name in ("one", "two")], "both"
    )
    host = serving_of(packed, ServerSettings())

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(OpenApiPage(host))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.get("/openapi.json")

    made = asyncio.run(ask()).json()
    assert made["info"] == {**made["info"], "title": "one, two", "version": packed.digest}
    assert {"/v2/models/one/infer", "/v2/models/two/infer"} <= set(made["paths"])
