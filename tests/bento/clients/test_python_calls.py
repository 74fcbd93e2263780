"""What a generated Python client does with errors, deadlines and retries; no server is involved."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import numpy as np
import pytest

from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.services.online.openapi.model import describe
from tests.bento.clients.rendered import load_client

Handler = Callable[[httpx.Request], httpx.Response]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The client of a model that takes and gives a vector `x`."""
    spec = TensorSpec(name="x", dtype=Datatype.FP32, shape=(DYNAMIC,))
    model = describe("vector", "d" * 64, Signature(inputs=(spec,), outputs=(spec,)))
    return load_client(model, tmp_path_factory.mktemp("client"))


def good() -> httpx.Response:
    """The answer [3, 4]."""
    output = {"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
    head = json.dumps({"model_name": "vector", "outputs": [output]}).encode()
    headers = {"inference-header-content-length": str(len(head))}
    return httpx.Response(
        200, content=head + np.array([3, 4], np.float32).tobytes(), headers=headers
    )


def infer(client: Any, handler: Handler, *, kind: str, timeout: float | None = None) -> list[float]:
    """Call `handler` as a transport with the blocking or the asyncio client."""
    transport = httpx.MockTransport(handler)
    request = client.Request(x=np.ones(2, np.float32))
    options = {"token": "t", "retry": client.Retry(attempts=3, first_seconds=0.001)}

    async def infer_async() -> Any:
        async with httpx.AsyncClient(transport=transport) as http:
            made = client.AsyncClient("http://server/base/", **options, http=http)
            return await made.infer(request, timeout=timeout)

    if kind == "asyncio":
        return list(asyncio.run(infer_async()).x)
    with httpx.Client(transport=transport) as http:
        made = client.Client("http://server/base/", **options, http=http)
        return list(made.infer(request, timeout=timeout).x)


both = pytest.mark.parametrize("kind", ["blocking", "asyncio"])


@both
@pytest.mark.parametrize(("status", "code"), [(503, "queue_full"), (429, "rate_limit_exceeded")])
def test_infer__temporary_failures__are_retried(
    client: Any, kind: str, status: int, code: str
) -> None:
    requests: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        if len(requests) == 1:
            raise httpx.ConnectError("refused")
        if len(requests) == 2:
            return httpx.Response(status, json={"error": "full", "code": code})
        return good()

    assert infer(client, handler, kind=kind) == [3, 4]
    assert len(requests) == 3
    assert {str(each.url) for each in requests} == {"http://server/base/v2/models/vector/infer"}
    assert {each.headers["authorization"] for each in requests} == {"Bearer t"}


@both
def test_infer__attempts_used_up__raises_the_last_error(client: Any, kind: str) -> None:
    count = 0

    def handler(_: httpx.Request) -> httpx.Response:
        nonlocal count
        count += 1
        return httpx.Response(503, json={"error": "full", "code": "queue_full", "hint": "Wait."})

    with pytest.raises(client.OverloadedError, match=r"full \(queue_full\)\. Wait\."):
        infer(client, handler, kind=kind)
    assert count == 3


@both
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx.Response(503, headers={"retry-after": "60"}), "UnavailableError"),
        (httpx.Response(200, text="<html>"), "ServerError"),
        (httpx.Response(500, text="oops"), "ServerError"),
        (httpx.Response(504, json=["odd"]), "DeadlineError"),
        (httpx.ReadTimeout("slow"), "DeadlineError"),
    ],
)
def test_infer__lasting_failure__is_not_retried(
    client: Any, kind: str, answer: httpx.Response | Exception, error: str
) -> None:
    count = 0

    def handler(_: httpx.Request) -> httpx.Response:
        nonlocal count
        count += 1
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, content=answer.content, headers=answer.headers)

    with pytest.raises(getattr(client, error)):
        infer(client, handler, kind=kind)
    assert count == 1


async def endless() -> AsyncIterator[bytes]:
    while True:
        await asyncio.sleep(0)
        yield b" "


@both
def test_infer__endless_answer__ends_at_the_deadline(client: Any, kind: str) -> None:
    content = itertools.repeat(b" ") if kind == "blocking" else endless()
    with pytest.raises(client.DeadlineError):
        infer(client, lambda _: httpx.Response(200, content=content), kind=kind, timeout=0.05)


def test_ready_and_served_digest__no_server__are_false_and_an_error(client: Any) -> None:
    def handler(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with httpx.Client(transport=httpx.MockTransport(handler)) as http:
        made = client.Client("http://server", http=http)
        assert not made.ready()
        with pytest.raises(client.UnavailableError):
            made.served_digest()


@pytest.mark.parametrize(
    ("requested", "failures", "jitter", "seconds"),
    [
        (None, 1, 0.0, 0.1),
        (None, 2, 0.0, 0.2),
        (None, 3, 1.0, 0.6),
        (2.0, 1, 0.0, 2.0),
        (2.0, 1, 0.5, 2.5),
        (6.0, 1, 0.0, None),
        (None, 4, 0.0, None),
    ],
)
def test_retry__wait__doubles_unless_the_server_asks_for_more(
    client: Any, requested: float | None, failures: int, jitter: float, seconds: float | None
) -> None:
    error = client.OverloadedError("full", retry_after=requested)
    expected = None if seconds is None else pytest.approx(seconds)
    assert client.Retry().wait(error, failures, jitter) == expected


@pytest.mark.parametrize("error", ["InvalidInputError", "DeadlineError", "ModelError"])
def test_retry__error_that_would_repeat__gives_up(client: Any, error: str) -> None:
    assert client.Retry().wait(getattr(client, error)("x"), 1, 0.0) is None


def test_call__several_attempts__share_one_deadline(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    call = client.Call(2.0, client.Retry(first_seconds=0.5))
    down = client.UnavailableError("down")
    assert 0.5 <= call.pause(down) <= 0.75
    now += 0.25
    assert call.remaining() == 1.75
    now += 1.25
    with pytest.raises(client.UnavailableError):
        call.pause(down)  # the wait would end after the deadline
    now += 1
    with pytest.raises(client.DeadlineError):
        call.remaining()
    with pytest.raises(ValueError, match="above 0"):
        client.Call(0, client.Retry())


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("queue_full", 503, "OverloadedError"),
        ("rate_limit_exceeded", 429, "OverloadedError"),
        ("unavailable", 503, "UnavailableError"),
        ("", 503, "UnavailableError"),
        ("", 429, "OverloadedError"),
        ("invalid_input", 400, "InvalidInputError"),
        ("deadline_exceeded", 504, "DeadlineError"),
    ],
)
def test_make_error__code_or_status__chooses_the_class(
    client: Any, code: str, status: int, kind: str
) -> None:
    error = client.make_error("text", code, "do this", status, "3")
    assert type(error).__name__ == kind
    found = (error.code, error.hint, error.status, error.retry_after)
    assert found == (code, "do this", status, 3.0)
    assert "do this" in str(error)
