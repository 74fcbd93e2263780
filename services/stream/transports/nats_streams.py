"""The streams of JetStream behind subjects: found, made on request, looked at."""

from __future__ import annotations

import re
from typing import Any

from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.errors import NotFoundError

from services.stream.base import Place
from services.stream.transports.nats_client import flag

_WINDOW_SECONDS = 120.0


async def stream_of(js: Any, place: Place) -> StreamConfig:
    """The stream that takes the subject of `place`; with `create=yes` it is made if missing."""
    try:
        name = await js.find_stream_name_by_subject(place.topic)
    except NotFoundError:
        if not flag(place, "create"):
            raise
        config = StreamConfig(
            name=re.sub(r"[^A-Za-z0-9_-]", "_", place.topic),
            subjects=[place.topic],
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            duplicate_window=place.number("window_s", _WINDOW_SECONDS),
        )
        made: StreamConfig = (await js.add_stream(config)).config
        return made
    found: StreamConfig = (await js.stream_info(name)).config
    return found


async def reader_of(js: Any, place: Place, last: int | None) -> tuple[str, str, int]:
    """A consumer for one reading: its stream, its name, and how many messages it will give.

    It begins so that at least the `last` messages of the subject come, all where it is None, and
    none if it is 0. The server forgets it a while after it was last asked.
    """
    info = await js.stream_info((await stream_of(js, place)).name)
    stream, state = info.config.name, info.state
    span = last
    while True:
        first = state.first_seq if span is None else max(state.first_seq, state.last_seq - span + 1)
        made = await js.add_consumer(stream, _reader(place.topic, first))
        if span is None or made.num_pending >= (last or 0) or first <= state.first_seq:
            return stream, made.name, int(made.num_pending or 0)
        await js.delete_consumer(stream, made.name)
        span *= 4


def _reader(subject: str, first: int) -> ConsumerConfig:
    return ConsumerConfig(
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=max(1, first),
        ack_policy=AckPolicy.NONE,
        filter_subject=subject,
        inactive_threshold=60.0,
        mem_storage=True,
    )
