"""The files of a Python client that differ from model to model, for `string.Template`."""

from __future__ import annotations

PYPROJECT = """\
# $header
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$distribution"
version = "$version"
description = "Asks model $name"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["httpx>=0.27", "numpy>=1.26"]

[project.optional-dependencies]
grpc = ["googleapis-common-protos>=1.66", "grpcio>=1.70", "protobuf>=5.29"]

[tool.setuptools]
packages = ["$package", "$package.runtime"]

[tool.setuptools.package-data]
"*" = ["py.typed", "*.proto", "*.binpb"]

[tool.ruff]
line-length = 100

[tool.mypy]
strict = true
packages = ["$package"]

[[tool.mypy.overrides]]
module = ["grpc.*", "google.*"]
ignore_missing_imports = true
"""

README = """\
<!-- $header -->
# A client of model `$name`

```python
import numpy as np

from $package import Client, ModelError, Request

request = $example
with Client("http://localhost:3000", token=None, timeout=5.0) as client:
    answer = client.infer(request)
    print(answer.$first_output, answer.meta.model_digest)
```

The request takes:

$takes

The answer gives:

$gives

A dimension of -1 may have any size. `AsyncClient` is the same for asyncio; `GrpcClient` and
`AsyncGrpcClient` ask over gRPC (`pip install $distribution[grpc]`, and
`from $package.grpc import GrpcClient`) at `HOST:PORT`.

- Arrays go as binary data; `Client(..., binary=False)` sends JSON.
- `timeout` is in seconds, for a call with all of its attempts. The server is told, and drops what
  is late.
- A server that is overloaded, starts, stops or is not reached is asked again, a few times, after
  the time that it names in Retry-After: `Client(..., retry=Retry(attempts=1))` asks once.
- Every error is a `ModelError` with the server's `code` and `hint`. A request of a wrong shape or
  dtype is an `InvalidInputError` before anything is sent.
- `answer.meta.model_digest` is the model that answered. This package was made for `DIGEST`;
  another one with the same signature answers as well: `client.served_digest()` tells which.

`python smoke_test.py http://localhost:3000 [localhost:3001]` asks a server in every way.
"""

INIT = '''\
# $header
"""A client of model $name."""

from .client import AsyncClient, Client
from .runtime.calls import Retry
from .runtime.errors import (
    AccessError,
    DeadlineError,
    InvalidInputError,
    ModelError,
    NotFoundError,
    OverloadedError,
    ServerError,
    TooLargeError,
    UnavailableError,
)
from .runtime.specs import Meta
from .tensors import DIGEST, NAME, Request, Response

__all__ = [
    "DIGEST",
    "NAME",
    "AccessError",
    "AsyncClient",
    "Client",
    "DeadlineError",
    "InvalidInputError",
    "Meta",
    "ModelError",
    "NotFoundError",
    "OverloadedError",
    "Request",
    "Response",
    "Retry",
    "ServerError",
    "TooLargeError",
    "UnavailableError",
]
'''

TENSORS = '''\
# $header
"""What model $name takes and gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .runtime.specs import Array, Contract, Meta, Spec

NAME = "$name"
DIGEST = "$digest"


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """The tensors of one request; a dimension of -1 may have any size."""

$request_fields


@dataclass(frozen=True, slots=True, eq=False)
class Response:
    """The tensors of one answer, and what it tells of itself."""

$response_fields
    meta: Meta


$input_specs
$output_specs


def _answer(arrays: Mapping[str, Array], meta: Meta) -> Response:
    return $from_arrays


CONTRACT: Contract[Request, Response] = Contract(NAME, DIGEST, INPUTS, OUTPUTS, _answer)
'''

CLIENT = '''\
# $header
"""Clients of model $name over HTTP."""

from __future__ import annotations

import httpx

from .runtime.calls import Retry
from .runtime.http_client import DEFAULT_RETRY, DEFAULT_SECONDS, AsyncHttpClient, HttpClient
from .tensors import CONTRACT, Request, Response


class Client(HttpClient[Request, Response]):
    """Asks the model at `url`. See `HttpClient` for what the options mean."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float = DEFAULT_SECONDS,
        retry: Retry = DEFAULT_RETRY,
        binary: bool = True,
        http: httpx.Client | None = None,
    ) -> None:
        super().__init__(
            CONTRACT, url, token=token, timeout=timeout, retry=retry, binary=binary, http=http
        )


class AsyncClient(AsyncHttpClient[Request, Response]):
    """As `Client`, for asyncio."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float = DEFAULT_SECONDS,
        retry: Retry = DEFAULT_RETRY,
        binary: bool = True,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        super().__init__(
            CONTRACT, url, token=token, timeout=timeout, retry=retry, binary=binary, http=http
        )
'''

GRPC = '''\
# $header
"""Clients of model $name over gRPC; needs the extra `grpc`."""

from __future__ import annotations

from typing import Any

from .runtime.calls import Retry
from .runtime.grpc_client import AsyncGrpcClient as _AsyncGrpcClient
from .runtime.grpc_client import GrpcClient as _GrpcClient
from .runtime.http_client import DEFAULT_RETRY, DEFAULT_SECONDS
from .tensors import CONTRACT, Request, Response


class GrpcClient(_GrpcClient[Request, Response]):
    """Asks the model at `target`, HOST:PORT."""

    def __init__(
        self,
        target: str,
        *,
        token: str | None = None,
        timeout: float = DEFAULT_SECONDS,
        retry: Retry = DEFAULT_RETRY,
        channel: Any = None,
    ) -> None:
        super().__init__(
            CONTRACT, target, token=token, timeout=timeout, retry=retry, channel=channel
        )


class AsyncGrpcClient(_AsyncGrpcClient[Request, Response]):
    """As `GrpcClient`, for asyncio."""

    def __init__(
        self,
        target: str,
        *,
        token: str | None = None,
        timeout: float = DEFAULT_SECONDS,
        retry: Retry = DEFAULT_RETRY,
        channel: Any = None,
    ) -> None:
        super().__init__(
            CONTRACT, target, token=token, timeout=timeout, retry=retry, channel=channel
        )
'''

SMOKE = '''\
# $header
"""Ask a running server in every way: `python smoke_test.py URL [GRPC_TARGET]`.

The token, if one is needed, is taken from MLCTL_TOKEN. Exits 0 if every way answers alike.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from $package import (
    AsyncClient,
    Client,
    InvalidInputError,
    Request,
    Response,
)
from $package.runtime.specs import Array
from $package.tensors import INPUTS, OUTPUTS

TOKEN = os.environ.get("MLCTL_TOKEN")


def example() -> Request:
    """A request of the right form."""
    return $indented_example


async def ask_async(url: str) -> Response:
    """The answer by asyncio."""
    async with AsyncClient(url, token=TOKEN) as client:
        return await client.infer(example())


def ask_grpc(target: str) -> Response:
    """The answer by gRPC."""
    from $package.grpc import GrpcClient

    with GrpcClient(target, token=TOKEN) as client:
        return client.infer(example())


def outputs(answer: Response) -> list[Array]:
    """The arrays of an answer."""
    return [getattr(answer, spec.field) for spec in OUTPUTS]


def check_alike(one: Response, other: Response) -> None:
    """End with an error unless both are the same answer of the same model."""
    same = one.meta.model_digest == other.meta.model_digest
    for first, second in zip(outputs(one), outputs(other), strict=True):
        if first.dtype.kind == "f":
            same &= np.allclose(first, second, rtol=1e-3, atol=1e-5, equal_nan=True)
        else:
            same &= np.array_equal(first, second)
    if not same:
        raise SystemExit(f"the answers differ: {one} and {other}")


def json_carries(answer: Response) -> bool:
    """Whether JSON has a form of all that is asked and answered."""
    if any(spec.datatype == "BF16" for spec in (*INPUTS, *OUTPUTS)):
        return False
    return all(np.isfinite(each).all() for each in outputs(answer) if each.dtype.kind == "f")


def check_refusal(client: Client) -> None:
    """A request of a wrong rank is not sent."""
    wrong: dict[str, Any] = {"$first_input": np.zeros((1,) * 20)}
    try:
        client.infer(replace(example(), **wrong))
    except InvalidInputError:
        return
    raise SystemExit("a request of a wrong shape was sent")


def main() -> None:
    """Ask, compare, and tell."""
    url, targets = sys.argv[1], sys.argv[2:]
    with Client(url, token=TOKEN) as client:
        first = client.infer(example())
        check_refusal(client)
    answers = [asyncio.run(ask_async(url)), *(ask_grpc(target) for target in targets)]
    if json_carries(first):
        with Client(url, token=TOKEN, binary=False) as client:
            answers.append(client.infer(example()))
    for other in answers:
        check_alike(first, other)
    print(f"{1 + len(answers)} ways answer alike, model {first.meta.model_digest}")


if __name__ == "__main__":
    main()
'''
