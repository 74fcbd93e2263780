"""The options of `mlctl stream run`, in the order in which its help lists them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import click

from bundle.errors import ErrorCode, MlctlError
from cli.options import Duration, parse_options

if TYPE_CHECKING:
    from services.stream.base import StreamUrl
    from services.stream.run import StreamConfig

_OPTIONS = (
    click.option("--in", "source", required=True, metavar="PLACE", help="Where messages are."),
    click.option("--out", "target", required=True, metavar="PLACE", help="Where answers go."),
    click.option(
        "--dead",
        metavar="PLACE",
        help="Where messages go that cannot be answered.  [default: the source's name and .dead]",
    ),
    click.option(
        "--group", default="mlctl", show_default=True, help="Consumers that share the work."
    ),
    click.option(
        "--from",
        "start",
        type=click.Choice(["earliest", "latest"]),
        default="earliest",
        show_default=True,
        help="Where a new group begins.",
    ),
    click.option(
        "--shadow",
        is_flag=True,
        help="Read what the group reads, as GROUP.shadow; dead letters go beside --out.",
    ),
    click.option("--payload", default="json", show_default=True, help="What messages are made of."),
    click.option(
        "--keep", multiple=True, metavar="FIELD[,FIELD...]", help="Fields that answers keep."
    ),
    click.option(
        "--map",
        "mapped",
        multiple=True,
        metavar="INPUT=COLUMN",
        help="Which columns of Arrow messages feed an input.",
    ),
    click.option(
        "--option",
        "options",
        multiple=True,
        metavar="NAME=VALUE",
        help="For one form of payload only.",
    ),
    click.option("--exactly-once", is_flag=True, help="Ask for the broker's transactions."),
    click.option("--ordered", is_flag=True, help="Keep the order of each key's messages."),
    click.option(
        "--max-latency-ms",
        type=click.FloatRange(1.0),
        default=100.0,
        show_default=True,
        help="From a message's arrival to its answer; batches are as large as that allows.",
    ),
    click.option(
        "--max-batch",
        type=click.IntRange(1),
        default=8192,
        show_default=True,
        help="Messages in a batch, at most.",
    ),
    click.option(
        "--max-message-bytes",
        type=click.IntRange(1),
        default=8 << 20,
        show_default=True,
        help="A larger message is a dead letter.",
    ),
    click.option(
        "--max-dead-rate",
        default="10%",
        show_default=True,
        metavar="P%",
        help="Of the newest 1,000 messages; above it the run stops.",
    ),
    click.option(
        "--patience",
        type=Duration(),
        default="5m",
        show_default=True,
        help="Time to wait for a broker or a model that is away.",
    ),
    click.option("--max-messages", type=click.IntRange(1), help="End after so many."),
    click.option("--until-empty", is_flag=True, help="End when the group has nothing left."),
    click.option(
        "--metrics-port",
        type=click.IntRange(0, 65_535),
        help="Serve metrics for Prometheus on this port of 127.0.0.1.",
    ),
)


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add all options of a run to `command`."""
    return reduce(lambda made, option: option(made), reversed(_OPTIONS), command)


def wanted_run(given: Mapping[str, Any], *, as_json: bool) -> StreamConfig:
    """What the options ask for; INVALID_INPUT for a value of a wrong form."""
    from services.stream.base import LinkRequest, StreamUrl
    from services.stream.engine import RunSettings
    from services.stream.payloads import PayloadRequest
    from services.stream.run import StreamConfig, dead_place, shadow_of
    from services.stream.window import BatchGoals

    source = StreamUrl.parse(given["source"])
    link = LinkRequest(
        source,
        given["group"],
        _written(given["target"], as_json=as_json),
        _written(given["dead"], as_json=as_json) if given["dead"] else dead_place(source),
        given["start"],
        given["exactly_once"],
        given["ordered"],
    )
    return StreamConfig(
        shadow_of(link) if given["shadow"] else link,
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


def _written(text: str, *, as_json: bool) -> StreamUrl:
    """A place to write to: the standard output as it is now, before what is printed leaves it."""
    from services.stream.base import StreamUrl

    place = StreamUrl.parse(text)
    if place.scheme != "-":
        return place
    if as_json:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, "--json prints on the standard output, as the answers do"
        )
    return replace(place, options={"descriptor": str(os.dup(1))})


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
