"""Served models whose answers a test decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mlctl.services.online.batching.executor import Cancellable, Waiter
from mlctl.services.online.batching.model_executor import forward
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.protocol.priority import Priority
from mlctl.services.protocol.wire import InferRequest


def replace_infer(
    monkeypatch: pytest.MonkeyPatch,
    model: ServedModel,
    infer: Callable[..., Any],
) -> None:
    """Let `infer`, which takes inputs, timeout and priority, answer the requests to `model`."""

    def handle(
        request: InferRequest, waiter: Waiter, timeout: float | None, priority: Priority
    ) -> Cancellable:
        return forward(asyncio.ensure_future(infer(request.inputs, timeout, priority)), waiter)

    changed: Any = model
    monkeypatch.setattr(changed, "infer", infer)
    monkeypatch.setattr(changed, "handle", handle)
