from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import httpx
import pytest
from bentoml.exceptions import BentoMLException
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from services.online.batching.admission import QueueFullError
from services.online.http.limits import CutOffError
from services.online.http.refused import RefusedError, keep_out_of_log
from services.online.server.app import PlainRefusals, TimeLimit

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


async def full(_request: Request) -> Response:
    """What BentoML makes of an exception above 500, on a task of its own as middleware has it."""

    async def call() -> Response:
        try:
            raise RefusedError(QueueFullError(7, 7, 3.5))
        except BentoMLException as error:
            return JSONResponse({"error": "see the log"}, status_code=error.error_code)

    return await asyncio.create_task(call())


ROUTES = [Route(f"/{f.__name__}", f, methods=["GET", "POST"]) for f in (quick, never, begun)]
ROUTES.append(Route("/predict", predict, methods=["POST"]))
ROUTES.append(Route("/predict/full", full, methods=["POST"]))


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


def test_a_refusal_keeps_its_sentence_code_and_headers() -> None:
    async def main() -> list[httpx.Response]:
        transport = httpx.ASGITransport(PlainRefusals(Starlette(routes=ROUTES)))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            again = {"answer": {"y": 1}, "status": 200}
            return [await client.post("/predict/full"), await client.post("/predict", json=again)]

    refused, answered = asyncio.run(main())
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "4")
    assert refused.json()["code"] == "queue_full"
    assert "7 rows wait" in refused.json()["error"]
    assert (answered.status_code, answered.json()) == (200, {"y": 1})


def test_refusals_are_no_news_for_bentomls_log(caplog: pytest.LogCaptureFixture) -> None:
    from bentoml._internal.server import http_app

    def wrong(name: str) -> ValidationError:
        return ValidationError.from_exception_data(name, [])

    keep_out_of_log()
    news = [ValueError("a defect"), wrong("Output")]
    for error in (RefusedError(QueueFullError(7, 7, 3.5)), CutOffError(), wrong("Input"), *news):
        http_app.logger.error("Exception", exc_info=error)
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == news


@pytest.mark.parametrize(
    ("status", "code"), [(404, "not_found"), (405, "method_not_allowed"), (500, "internal")]
)
def test_bentomls_own_refusals_have_a_code_and_none_of_its_words(status: int, code: str) -> None:
    refused = ask("/predict", {"answer": {"error": "secret"}, "status": status}, seconds=5)
    assert (refused.status_code, refused.json()["code"]) == (status, code)
    assert "secret" not in refused.text


@pytest.mark.parametrize(
    "kind", ["multipart/form-data; boundary=b", "Application/X-WWW-Form-Urlencoded"]
)
def test_forms_are_not_read(kind: str) -> None:
    async def never(*_: object) -> None:
        raise AssertionError("it was asked")

    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(PlainRefusals(never))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            headers = {"content-type": kind}
            return await client.post("/predict/tiny", content=b"x=1", headers=headers)

    refused = asyncio.run(main())
    assert (refused.status_code, refused.json()["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("answer", "status"), [([{"error": "wrong rows"}], 400), ({"y": 1}, 200), ("late", 408)]
)
def test_other_answers_stay_as_they_are(answer: object, status: int) -> None:
    response = ask("/predict", {"answer": answer, "status": status}, seconds=5)
    assert (response.status_code, response.json()) == (status, answer)
