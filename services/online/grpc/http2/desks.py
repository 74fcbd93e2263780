"""The desks of several models: a message is known to at most one, for it names its model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from services.online.grpc.http2.desk import DeskConnection, InferDesk
from services.online.grpc.http2.head import CallHead


class Taker(Protocol):
    """What a connection asks first of each whole call."""

    def take(self, link: DeskConnection, stream: int, head: CallHead, data: bytes) -> bool:
        """See `InferDesk.take`."""
        ...


class InferDesks:
    """Asks each desk whether it knows the message, and lets that one take the call."""

    def __init__(self, desks: Sequence[InferDesk]) -> None:
        self._desks = desks

    def take(self, link: DeskConnection, stream: int, head: CallHead, data: bytes) -> bool:
        """See `InferDesk.take`; what the link's last call was may be another desk's."""
        for desk in self._desks:
            known = desk.find(data)
            if known is not None:
                link.known = known
                return desk.take(link, stream, head, data)
        return False
