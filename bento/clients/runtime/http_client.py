"""Clients over HTTP, for plain and for asyncio code."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Generic, Self
from urllib.parse import quote

import httpx

from .calls import Call, Retry, late
from .errors import ModelError, ServerError, UnavailableError
from .specs import Contract, Request, Response
from .wire import decode, encode, refusal

DEFAULT_SECONDS = 10.0
DEFAULT_RETRY = Retry()


class _Shared(Generic[Request, Response]):
    """What both clients do without waiting for anything."""

    def __init__(
        self,
        contract: Contract[Request, Response],
        url: str,
        token: str | None,
        timeout: float,
        retry: Retry,
        *,
        binary: bool,
    ) -> None:
        self._contract = contract
        self._base = url.rstrip("/")
        self._model = f"{self._base}/v2/models/{quote(contract.name, safe='')}"
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._timeout = timeout
        self._retry = retry
        self._binary = binary

    def _begin(self, timeout: float | None) -> Call:
        seconds = self._timeout if timeout is None else timeout
        return Call(seconds, self._retry, time.monotonic)

    def _ask(
        self, request: Request, call: Call, request_id: str | None
    ) -> tuple[bytes, dict[str, str]]:
        arrays = self._contract.arrays(request)
        limit = {"timeout": call.timeout}
        body, headers = encode(self._contract.inputs, arrays, limit, binary=self._binary)
        identity = {} if request_id is None else {"x-request-id": request_id}
        return body, {**self._headers, **headers, **identity}

    def _read(self, answer: httpx.Response, body: bytes) -> Response:
        if answer.status_code != 200:
            raise refusal(answer.status_code, answer.headers, body)
        arrays, meta = decode(self._contract.outputs, answer.headers, body)
        return self._contract.answer(arrays, meta)


def _digest(answer: httpx.Response) -> str:
    if answer.status_code != 200:
        raise refusal(answer.status_code, answer.headers, answer.content)
    try:
        return str(answer.json()["versions"][-1])
    except (ValueError, LookupError, TypeError) as error:
        raise ServerError("the server's description of the model is not readable") from error


def _failed(error: httpx.RequestError) -> ModelError:
    if isinstance(error, httpx.TimeoutException):
        return late()
    return UnavailableError(
        "the server was not reached, or broke off",
        code="unavailable",
        hint="Is it up, and is this its address?",
    )


class HttpClient(_Shared[Request, Response]):
    """Asks the model over HTTP. May be used by several threads at once.

    `timeout` is in seconds, for a call with all of its attempts. `http` replaces the connection
    pool, for own certificates or proxies; whoever gives one closes it.
    """

    def __init__(
        self,
        contract: Contract[Request, Response],
        url: str,
        *,
        token: str | None = None,
        timeout: float = DEFAULT_SECONDS,
        retry: Retry = DEFAULT_RETRY,
        binary: bool = True,
        http: httpx.Client | None = None,
    ) -> None:
        super().__init__(contract, url, token, timeout, retry, binary=binary)
        self._owned = http is None
        self._http = http or httpx.Client()

    def infer(
        self, request: Request, *, timeout: float | None = None, request_id: str | None = None
    ) -> Response:
        """The model's answer; a `ModelError` says why there is none."""
        call = self._begin(timeout)
        while True:
            try:
                return self._attempt(request, call, request_id)
            except ModelError as error:
                seconds = call.pause(error)
            time.sleep(seconds)

    def ready(self) -> bool:
        """Whether the model takes requests now."""
        try:
            answer = self._http.get(
                f"{self._model}/ready", headers=self._headers, timeout=self._timeout
            )
        except httpx.RequestError:
            return False
        return answer.status_code == 200

    def served_digest(self) -> str:
        """The digest of the model that the server has; this client was made for `DIGEST`."""
        try:
            return _digest(
                self._http.get(self._model, headers=self._headers, timeout=self._timeout)
            )
        except httpx.RequestError as error:
            raise _failed(error) from error

    def close(self) -> None:
        """Close the connections."""
        if self._owned:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _attempt(self, request: Request, call: Call, request_id: str | None) -> Response:
        body, headers = self._ask(request, call, request_id)
        options: dict[str, Any] = {"content": body, "headers": headers, "timeout": call.left}
        try:
            with self._http.stream("POST", f"{self._model}/infer", **options) as answer:
                pieces = []
                for piece in answer.iter_bytes():
                    pieces.append(piece)
                    _ = call.left  # an answer that comes in drops has no more time, either
        except httpx.RequestError as error:
            raise _failed(error) from error
        return self._read(answer, b"".join(pieces))


class AsyncHttpClient(_Shared[Request, Response]):
    """As `HttpClient`, for asyncio."""

    def __init__(
        self,
        contract: Contract[Request, Response],
        url: str,
        *,
        token: str | None = None,
        timeout: float = DEFAULT_SECONDS,
        retry: Retry = DEFAULT_RETRY,
        binary: bool = True,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        super().__init__(contract, url, token, timeout, retry, binary=binary)
        self._owned = http is None
        self._http = http or httpx.AsyncClient()

    async def infer(
        self,
        request: Request,
        *,
        timeout: float | None = None,
        request_id: str | None = None,
    ) -> Response:
        """The model's answer; a `ModelError` says why there is none."""
        call = self._begin(timeout)
        while True:
            try:
                return await self._attempt(request, call, request_id)
            except ModelError as error:
                seconds = call.pause(error)
            await asyncio.sleep(seconds)

    async def ready(self) -> bool:
        """Whether the model takes requests now."""
        try:
            answer = await self._http.get(
                f"{self._model}/ready", headers=self._headers, timeout=self._timeout
            )
        except httpx.RequestError:
            return False
        return answer.status_code == 200

    async def served_digest(self) -> str:
        """The digest of the model that the server has; this client was made for `DIGEST`."""
        try:
            return _digest(
                await self._http.get(self._model, headers=self._headers, timeout=self._timeout)
            )
        except httpx.RequestError as error:
            raise _failed(error) from error

    async def close(self) -> None:
        """Close the connections."""
        if self._owned:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _attempt(self, request: Request, call: Call, request_id: str | None) -> Response:
        body, headers = self._ask(request, call, request_id)
        url = f"{self._model}/infer"
        try:
            async with asyncio.timeout(call.left):
                answer = await self._http.post(url, content=body, headers=headers, timeout=None)
        except TimeoutError:
            raise late() from None
        except httpx.RequestError as error:
            raise _failed(error) from error
        return self._read(answer, answer.content)
