"""What the HTTP clients do when something is wrong with the server or the way to it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable

import httpx
import numpy as np
import pytest

from bento.clients.runtime.calls import Retry
from bento.clients.runtime.errors import (
    DeadlineError,
    ModelError,
    OverloadedError,
    ServerError,
    UnavailableError,
)
from bento.clients.runtime.http_client import AsyncHttpClient, HttpClient
from bento.clients.runtime.specs import Contract, Spec

SPEC = Spec("x", "x", "FP32", (-1,))
QUICK = Retry(attempts=3, first_seconds=0.001)


class Question:
    x = np.ones(2, np.float32)


CONTRACT: Contract[Question, list[float]] = Contract(
    "m", "d", (SPEC,), (SPEC,), lambda arrays, _meta: list(arrays["x"])
)
GOOD = {
    "model_name": "m",
    "outputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [3, 4]}],
}
Handler = Callable[[httpx.Request], httpx.Response]


def ask(handler: Handler, *, way: str, timeout: float | None = None) -> list[float]:
    """The answer by the plain or the asyncio client, over a transport that is `handler`."""
    transport = httpx.MockTransport(handler)
    if way == "plain":
        with httpx.Client(transport=transport) as http:
            client = HttpClient(CONTRACT, "http://server/base/", token="t", retry=QUICK, http=http)
            return client.infer(Question(), timeout=timeout)

    async def main() -> list[float]:
        async with httpx.AsyncClient(transport=transport) as http:
            client = AsyncHttpClient(
                CONTRACT, "http://server/base/", token="t", retry=QUICK, http=http
            )
            return await client.infer(Question(), timeout=timeout)

    return asyncio.run(main())


BOTH = pytest.mark.parametrize("way", ["plain", "asyncio"])


@BOTH
def test_a_call_is_repeated_until_it_is_answered(way: str) -> None:
    requests: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        if len(requests) == 1:
            raise httpx.ConnectError("refused")
        if len(requests) == 2:
            return httpx.Response(503, json={"error": "full", "code": "queue_full"})
        return httpx.Response(200, json=GOOD)

    assert ask(handler, way=way) == [3, 4]
    assert len(requests) == 3
    assert {str(each.url) for each in requests} == {"http://server/base/v2/models/m/infer"}
    assert {each.headers["authorization"] for each in requests} == {"Bearer t"}


@BOTH
def test_the_last_error_is_told_when_attempts_run_out(way: str) -> None:
    count = 0

    def handler(_: httpx.Request) -> httpx.Response:
        nonlocal count
        count += 1
        return httpx.Response(503, json={"error": "full", "code": "queue_full", "hint": "Wait."})

    with pytest.raises(OverloadedError, match=r"full \(queue_full\)\. Wait\."):
        ask(handler, way=way)
    assert count == 3


@BOTH
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (httpx.Response(503, headers={"retry-after": "60"}), UnavailableError),
        (httpx.Response(200, text="<html>"), ServerError),
        (httpx.Response(500, text="oops"), ServerError),
        (httpx.Response(504, json=["odd"]), DeadlineError),
        (httpx.ReadTimeout("slow"), DeadlineError),
    ],
)
def test_what_is_not_worth_repeating_fails_at_once(
    way: str, answer: httpx.Response | Exception, kind: type[ModelError]
) -> None:
    count = 0

    def handler(_: httpx.Request) -> httpx.Response:
        nonlocal count
        count += 1
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, content=answer.content, headers=answer.headers)

    with pytest.raises(kind):
        ask(handler, way=way)
    assert count == 1


async def drops_async() -> AsyncIterator[bytes]:
    while True:
        await asyncio.sleep(0)
        yield b" "


@BOTH
def test_an_answer_in_drops_has_no_more_time(way: str) -> None:
    drops = itertools.repeat(b" ") if way == "plain" else drops_async()
    with pytest.raises(DeadlineError):
        ask(lambda _: httpx.Response(200, content=drops), way=way, timeout=0.05)


def test_readiness_and_digest_of_a_server_that_is_not_there() -> None:
    def handler(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with httpx.Client(transport=httpx.MockTransport(handler)) as http:
        client = HttpClient(CONTRACT, "http://server", http=http)
        assert not client.ready()
        with pytest.raises(UnavailableError):
            client.served_digest()
