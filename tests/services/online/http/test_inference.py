"""What all endpoints share on the way to an answer; the answers are in test_app."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.batching.admission import CachedRejection, QueueFullError
from mlctl.services.online.batching.executor import Answer
from mlctl.services.online.http.inference import InferHandler, PendingRequest
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings
from mlctl.services.protocol.priority import Priority
from tests.support.bundles import make_bundle

BODY = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}'


@pytest.fixture
def inference(bundle: VerifiedBundle) -> InferHandler:
    return InferHandler(
        ServedModel(bundle, ServerSettings(max_body_bytes=100), registry=CollectorRegistry())
    )


@pytest.fixture
def asked(inference: InferHandler, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What the model was asked, with which timeout and priority."""
    calls: list[Any] = []
    loop = asyncio.new_event_loop()

    def handle(*arguments: Any) -> asyncio.Future[Answer]:
        calls.append(arguments)
        return loop.create_future()

    monkeypatch.setattr(inference._served, "handle", handle)
    yield calls
    loop.close()


def opened(inference: InferHandler, headers: dict[bytes, bytes]) -> PendingRequest:
    pending = PendingRequest(inference.inflight)
    inference.begin(pending, headers)
    return pending


def submit(inference: InferHandler, headers: dict[bytes, bytes], body: bytes, left: float) -> None:
    inference.submit(opened(inference, headers), body, left)


def test_targets__model_with_special_name__are_its_paths(tmp_path: Any) -> None:
    bundle = make_bundle(tmp_path / "b", name="a.b-c_d")
    targets = InferHandler(
        ServedModel(bundle, ServerSettings(), registry=CollectorRegistry())
    ).targets
    version = f"/v2/models/a.b-c_d/versions/{bundle.digest}/infer".encode()
    assert targets == {b"/v2/models/a.b-c_d/infer", version}


@pytest.mark.parametrize("given", [b"", b"a b", b"\xff", b"x" * 129, None])
def test_request_id__invalid__is_replaced(inference: InferHandler, given: bytes | None) -> None:
    headers = {} if given is None else {b"x-request-id": given}
    first, second = inference.request_id(headers), inference.request_id(headers)
    assert len({first, second, given}) == 3
    assert inference.request_id({b"x-request-id": b"fit-1"}) == b"fit-1"


def test_priority__header_and_body__header_wins(inference: InferHandler, asked: list[Any]) -> None:
    high = BODY[:-1] + b',"parameters":{"priority":1}}'
    for headers, body in (
        ({}, BODY),
        ({}, high),
        ({b"mlctl-priority": b"High"}, BODY),
        ({b"mlctl-priority": b"normal"}, high),
    ):
        submit(inference, headers, body, 5.0)
    normal, other = Priority.NORMAL, Priority.HIGH
    assert [priority for *_, priority in asked] == [normal, other, other, normal]
    with pytest.raises(MlctlError) as caught:
        opened(inference, {b"mlctl-priority": b"\xff"})
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_timeout__several_limits__shortest_counts(
    inference: InferHandler, asked: list[Any]
) -> None:
    body = BODY[:-1] + b',"parameters":{"timeout":2000000}}'
    for left in (5.0, 1.0):
        submit(inference, {}, body, left)
    assert [timeout for *_, timeout, _ in asked] == [2.0, 1.0]
    np.testing.assert_array_equal(asked[0][0].inputs["x"], [[1, 2, 3, 4]])


def test_content_length__above_the_limit__is_rejected_before_the_body(
    inference: InferHandler,
) -> None:
    opened(inference, {b"content-length": b"100"})
    with pytest.raises(MlctlError) as caught:
        opened(inference, {b"content-length": b"101"})
    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE


async def test_full_queue__short_request__is_rejected_before_its_body_is_parsed(
    shared_bundle: VerifiedBundle,
) -> None:
    model = ServedModel(shared_bundle, ServerSettings(), registry=CollectorRegistry())
    await model.start()
    inference = InferHandler(model)
    full = QueueFullError(8, 8, 2.3)
    executor: Any = model._batching
    policy = executor._policy
    policy.rejection = CachedRejection(1, Priority.NORMAL, math.inf, full)
    inference.rejecting = True

    def outcome(headers: dict[bytes, bytes], body: bytes) -> ErrorCode | None:
        try:
            submit(inference, headers, body, 5.0)
        except MlctlError as error:
            return error.code
        return None

    broken = b'{"inputs":'
    assert outcome({}, broken) is ErrorCode.QUEUE_FULL
    assert outcome({b"mlctl-priority": b"high"}, broken) is ErrorCode.INVALID_INPUT
    assert outcome({}, broken + b'"priority"') is ErrorCode.INVALID_INPUT
    assert outcome({}, broken + b" " * 10_000) is ErrorCode.INVALID_INPUT
    first, second = (inference.reject(full, name) for name in (b"a", b"b"))
    assert first.body is second.body
    assert dict(first.headers)[b"x-request-id"] == b"a"
    assert dict(second.headers) == {**dict(first.headers), b"x-request-id": b"b"}
    (target, *_) = inference.targets
    whole = b"POST %b HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\nx-request-id: Ab1\r\n\r\n{}"
    response = inference.reject_unparsed(whole % target, b"server: a\r\n") or b""
    assert response.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nx-request-id: Ab1\r\n" in response
    assert response.endswith(first.body)
    assert inference.reject_unparsed(whole % b"/", b"server: a\r\n") is None
    policy.rejection = None
    assert inference.reject_unparsed(whole % target, b"server: a\r\n") is None
    assert not inference.rejecting
    policy.rejection = CachedRejection(2, Priority.NORMAL, math.inf, full)
    assert outcome({}, broken) is ErrorCode.INVALID_INPUT
    await model.stop()
