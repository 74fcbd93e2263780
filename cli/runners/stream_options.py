"""Options of a run on a stream, in the order of its help."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from bundle.errors import ErrorCode, MlctlError
from cli.options import Duration, add_options, parse_options

if TYPE_CHECKING:
    from services.stream.base import StreamUrl
    from services.stream.run import StreamConfig

_OPTIONS = (
    click.option(
        "--in", "source", required=True, metavar="URL", help="Stream of messages to score."
    ),
    click.option(
        "--out",
        "target",
        required=True,
        metavar="URL",
        help="Stream, SQL table or HTTP URL that answers go to.",
    ),
    click.option(
        "--dead",
        metavar="URL",
        help="Stream of messages that cannot be answered.  [default: the source's topic and .dead]",
    ),
    click.option(
        "--group",
        default="mlctl",
        show_default=True,
        help="Consumer group: runs with the same group share the work.",
    ),
    click.option(
        "--from",
        "start",
        type=click.Choice(["earliest", "latest"]),
        default="earliest",
        show_default=True,
        help="First message of a new group.",
    ),
    click.option(
        "--payload",
        default="json",
        show_default=True,
        help="Format of messages: json, arrow, raw, avro.",
    ),
    click.option(
        "--keep",
        multiple=True,
        metavar="FIELD[,FIELD...]",
        help="Fields of a message to copy into its answer; '*' for all (json, arrow).",
    ),
    click.option(
        "--map",
        "mapped",
        multiple=True,
        metavar="INPUT=COLUMN",
        help="Columns of Arrow messages that feed an input.",
    ),
    click.option(
        "--option",
        "options",
        multiple=True,
        metavar="NAME=VALUE",
        help="Option of the payload format.",
    ),
    click.option("--exactly-once", is_flag=True, help="Commit in Kafka's transactions."),
    click.option(
        "--max-latency-ms",
        type=click.FloatRange(1.0),
        default=100.0,
        show_default=True,
        help="Goal from a message's arrival to its commit; it bounds the size of batches.",
    ),
    click.option(
        "--max-batch",
        type=click.IntRange(1),
        default=8192,
        show_default=True,
        help="Maximum messages in a batch.",
    ),
    click.option(
        "--max-message-bytes",
        type=click.IntRange(1),
        default=8 << 20,
        show_default=True,
        help="Larger messages become dead letters.",
    ),
    click.option(
        "--max-dead-rate",
        default="10%",
        show_default=True,
        metavar="P%",
        help="Stop above this share of dead letters in the newest 1,000 messages.",
    ),
    click.option(
        "--patience",
        type=Duration(),
        default="5m",
        show_default=True,
        help="Time to wait for a broker or a model that is unavailable.",
    ),
    click.option("--max-messages", type=click.IntRange(1), help="End after this many messages."),
    click.option("--until-empty", is_flag=True, help="End when the group's lag is 0."),
    click.option(
        "--metrics-port",
        type=click.IntRange(0, 65_535),
        help="Serve Prometheus metrics on this port; 0 takes a free one.",
    ),
    click.option(
        "--metrics-host",
        default="127.0.0.1",
        show_default=True,
        help="Address of the metrics; MLCTL_TOKEN_FILE requires a token of callers.",
    ),
)


def stream_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a run to `command`."""
    return add_options(_OPTIONS, command)


def stream_config(given: Mapping[str, Any], *, as_json: bool) -> StreamConfig:
    """Return the run that the options describe; INVALID_INPUT for an invalid value."""
    from services.stream.base import ConnectionRequest, StreamUrl
    from services.stream.batching import BatchGoals
    from services.stream.engine import RunSettings
    from services.stream.payloads import PayloadRequest
    from services.stream.run import StreamConfig, default_dead

    source = StreamUrl.parse(given["source"])
    request = ConnectionRequest(
        source,
        given["group"],
        _destination(given["target"], as_json=as_json),
        _destination(given["dead"], as_json=as_json) if given["dead"] else default_dead(source),
        given["start"],
        given["exactly_once"],
    )
    return StreamConfig(
        request,
        PayloadRequest(
            given["payload"],
            tuple(name for text in given["keep"] for name in text.split(",") if name),
            given["max_message_bytes"],
            map=given["mapped"],
            options=parse_options(given["options"]),
        ),
        RunSettings(
            BatchGoals(given["max_latency_ms"] / 1e3, given["max_batch"]),
            _share(given["max_dead_rate"]),
            given["patience"],
            max_messages=given["max_messages"],
            until_empty=given["until_empty"],
        ),
    )


def _destination(text: str, *, as_json: bool) -> StreamUrl:
    """Parse a URL to write to; keep standard output open before printing is redirected."""
    from services.stream.base import StreamUrl

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
