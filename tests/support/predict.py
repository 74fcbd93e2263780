"""A model behind `/predict` in this process, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import httpx
from prometheus_client import CollectorRegistry

from mlctl.bundle.verify import VerifiedBundle
from mlctl.services.online.http.declaration import ROUTE
from mlctl.services.online.http.predict import PredictApp
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings


def post_all(
    bundle: VerifiedBundle, bodies: Sequence[tuple[str, bytes]], route: str = ROUTE
) -> list[httpx.Response]:
    """Serve `bundle` and post bodies of these media types, one after the other."""

    async def main() -> list[httpx.Response]:
        model = ServedModel(bundle, ServerSettings(), registry=CollectorRegistry())
        await model.start()
        try:
            transport = httpx.ASGITransport(PredictApp(model))
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return [
                    await client.post(route, content=body, headers={"content-type": kind})
                    for kind, body in bodies
                ]
        finally:
            await model.stop()

    return asyncio.run(main())
