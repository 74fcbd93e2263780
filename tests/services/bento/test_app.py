from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from services.bento.app import PlainRefusals, TimeLimit

MISSING = {"type": "missing", "loc": ["x"], "msg": "Field required", "url": "https://example"}
WRONG = {"type": "value_error", "loc": ["y", 0], "msg": "secret of a library"}


async def quick(_request: Request) -> Response:
    return PlainTextResponse("done")


async def never(_request: Request) -> Response:
    await asyncio.Event().wait()
    raise AssertionError


async def begun(_request: Request) -> Response:
    async def pieces() -> Any:
        yield b"first"
        await asyncio.sleep(0.2)  # longer than the limit: what is measured
        yield b" last"

    return StreamingResponse(pieces())


async def predict(request: Request) -> Response:
    found = await request.json()
    return JSONResponse(found["answer"], status_code=found["status"])


ROUTES = [Route(f"/{f.__name__}", f, methods=["GET", "POST"]) for f in (quick, never, begun)]
ROUTES.append(Route("/predict", predict, methods=["POST"]))


def ask(path: str, document: object = None, seconds: float = 0.1) -> httpx.Response:
    async def main() -> httpx.Response:
        app = TimeLimit(PlainRefusals(Starlette(routes=ROUTES)), seconds)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post(path, json=document)

    return asyncio.run(main())


def test_an_answer_that_does_not_begin_in_time_is_refused() -> None:
    assert ask("/quick").text == "done"
    late = ask("/never")
    assert (late.status_code, late.json()["code"]) == (504, "deadline_exceeded")


def test_an_answer_that_has_begun_may_take_longer() -> None:
    assert ask("/begun").text == "first last"


def test_a_request_that_is_answered_leaves_nothing_behind() -> None:
    async def main() -> bool:
        class Kept(dict[str, Any]):
            pass

        app = TimeLimit(Starlette(routes=ROUTES), 3600)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://test"
        ) as client:
            extensions = Kept()
            seen = weakref.ref(extensions)
            await client.get("/quick", extensions=extensions)
            del extensions
        gc.collect()
        return seen() is None

    assert asyncio.run(main())


@pytest.mark.parametrize(
    ("detail", "said"),
    [
        ([MISSING], "'x' is missing"),
        ([MISSING, WRONG], "'x' is missing, 'y' is not as described"),
        ([{**WRONG, "loc": []}], "they are not one JSON object"),
    ],
)
def test_wrong_arguments_are_told_in_our_own_words(detail: list[object], said: str) -> None:
    answer = {"error": "1 validation error for Input", "detail": detail}
    refused = ask("/predict", {"answer": answer, "status": 400}, seconds=5)
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_input")
    assert said in refused.json()["error"]
    assert "pydantic" not in refused.text
    assert "secret" not in refused.text


@pytest.mark.parametrize(("answer", "status"), [([{"error": "wrong rows"}], 400), ({"y": 1}, 200)])
def test_other_answers_stay_as_they_are(answer: object, status: int) -> None:
    response = ask("/predict", {"answer": answer, "status": status}, seconds=5)
    assert (response.status_code, response.json()) == (status, answer)
