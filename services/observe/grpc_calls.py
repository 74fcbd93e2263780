"""gRPC calls as observers are to know them: their ids and traces are in the metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from bundle.errors import MlctlError
from services.host import ModelHost
from services.observe.calls import GRPC, Seen
from services.observe.ids import RequestIds


class GrpcCalls:
    """Tells the observer of one host, if it has one, of the calls to it."""

    def __init__(self, host: ModelHost) -> None:
        self._host = host
        self._ids = RequestIds()

    def begin(self, size: Callable[[], int] | None, context: Any) -> Seen | None:
        """A request of `size` bytes, if that is known; None if nobody wants to hear more of it."""
        if self._host.observer is None:
            return None
        metadata = dict(context.invocation_metadata() or ())
        request_id = self._ids.of(_header(metadata, "x-request-id"))
        traceparent = _header(metadata, "traceparent")
        seen = self._host.observer.begin(GRPC, request_id, traceparent, context.peer())
        if seen is not None and size is not None:
            seen.bytes_in = size()
        return seen

    def refused(self, error: MlctlError, context: Any) -> None:
        """The call was refused before anything of it was read."""
        self._host.count(GRPC, error)
        with suppress(MlctlError):  # metadata that is none: then there is no telling whose it was
            self.ended(self.begin(None, context), error)

    def ended(self, seen: Seen | None, error: BaseException | None) -> None:
        """The request failed, or its stream is whole."""
        if seen is not None and self._host.observer is not None:
            self._host.observer.ended(seen, error)


def _header(metadata: Mapping[str, str | bytes], name: str) -> bytes | None:
    value = metadata.get(name)
    return value.encode() if isinstance(value, str) else value
