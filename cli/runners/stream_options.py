"""Options of a run on a stream, in the order of its help."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from mlctl.cli.options import Duration, option, parse_options
from mlctl.core.errors import ErrorCode, MlctlError

if TYPE_CHECKING:
    from mlctl.services.stream.base import StreamUrl
    from mlctl.services.stream.start import StreamConfig


@dataclass(frozen=True, kw_only=True)
class StreamRunOptions:
    """A run on a stream, in the order of its help."""

    source: str = option(
        name="--in", required=True, metavar="URL", help="Stream of messages to score."
    )
    target: str = option(
        name="--out",
        required=True,
        metavar="URL",
        help="Stream, SQL table or HTTP URL that answers go to.",
    )
    dead: str | None = option(
        metavar="URL",
        help="Stream of messages that cannot be answered.  [default: the source's topic and .dead]",
    )
    group: str = option("mlctl", help="Consumer group: runs with the same group share the work.")
    start: str = option(
        "earliest",
        click.Choice(["earliest", "latest"]),
        name="--from",
        help="First message of a new group.",
    )
    payload: str = option("json", help="Format of messages: json, raw, avro.")
    keep: tuple[str, ...] = option(
        metavar="FIELD[,FIELD...]",
        help="Fields of a message to copy into its answer; '*' for all (json).",
    )
    settings: tuple[str, ...] = option(
        name="--option", metavar="NAME=VALUE", help="Option of the payload format."
    )
    exactly_once: bool = option(help="Commit in Kafka's transactions.")
    max_latency_ms: float = option(
        100.0,
        click.FloatRange(1.0),
        help="Goal from a message's arrival to its commit; it bounds the size of batches.",
    )
    max_batch: int = option(8192, click.IntRange(1), help="Maximum messages in a batch.")
    max_message_bytes: int = option(
        8 << 20, click.IntRange(1), help="Larger messages become dead letters."
    )
    max_dead_rate: str = option(
        "10%",
        metavar="P%",
        help="Stop above this share of dead letters in the newest 1,000 messages.",
    )
    patience: float = option(
        "5m", Duration(), help="Time to wait for a broker or a model that is unavailable."
    )
    max_messages: int | None = option(type=click.IntRange(1), help="End after this many messages.")
    until_empty: bool = option(help="End when the group's lag is 0.")
    metrics_port: int | None = option(
        type=click.IntRange(0, 65_535),
        help="Serve Prometheus metrics on this port; 0 takes a free one.",
    )
    metrics_host: str = option(
        "127.0.0.1", help="Address of the metrics; MLCTL_TOKEN_FILE requires a token of callers."
    )


def stream_config(options: StreamRunOptions, *, as_json: bool) -> StreamConfig:
    """Return the run that the options describe; INVALID_INPUT for an invalid value."""
    from mlctl.services.stream.base import ConnectionRequest, StreamUrl
    from mlctl.services.stream.batching import BatchGoals
    from mlctl.services.stream.engine import RunSettings
    from mlctl.services.stream.payloads import PayloadRequest
    from mlctl.services.stream.start import StreamConfig, default_dead

    source = StreamUrl.parse(options.source)
    request = ConnectionRequest(
        source,
        options.group,
        _destination(options.target, as_json=as_json),
        _destination(options.dead, as_json=as_json) if options.dead else default_dead(source),
        options.start,
        options.exactly_once,
    )
    return StreamConfig(
        request,
        PayloadRequest(
            options.payload,
            tuple(name for text in options.keep for name in text.split(",") if name),
            options.max_message_bytes,
            options=parse_options(options.settings),
        ),
        RunSettings(
            BatchGoals(options.max_latency_ms / 1e3, options.max_batch),
            _share(options.max_dead_rate),
            options.patience,
            max_messages=options.max_messages,
            until_empty=options.until_empty,
        ),
    )


def _destination(text: str, *, as_json: bool) -> StreamUrl:
    """Parse a URL to write to; keep standard output open before printing is redirected."""
    from mlctl.services.stream.base import StreamUrl

    url = StreamUrl.parse(text)
    if url.scheme != "-":
        return url
    if as_json:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, "--json and the answers cannot both use standard output"
        )
    return replace(url, options={"descriptor": str(os.dup(1))})


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"--max-dead-rate {text}: write a share, such as 10% or 0.1"
        )
    return share
