"""The options of `mlctl manifests`, and which targets each is for."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import click

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)
_COUNT = click.IntRange(0, 10_000)
_KUBERNETES = frozenset({"kubernetes"})
_KSERVE = frozenset({"kserve"})
_CLUSTERS = _KUBERNETES | _KSERVE
_SCALED = _CLUSTERS | {"bentocloud"}
_IMAGES = _CLUSTERS | {"compose"}

# By parameter; what is not here is for all.
BELONGS = {
    "image": _IMAGES,
    "bench": _IMAGES,
    "token_secret": _IMAGES,
    "namespace": _CLUSTERS,
    "replicas": _SCALED,
    "max_replicas": _SCALED,
    "wake_query": _KUBERNETES,
    "prometheus": _KUBERNETES,
    "layout": _KUBERNETES,
    "slot": _KUBERNETES,
    "gateway": _KUBERNETES,
    "hosts": _KUBERNETES,
    "grpc_host": _KUBERNETES,
    "allow_from": _KUBERNETES,
    "mode": _KSERVE,
    "canary": _KSERVE,
    "stable_image": _KSERVE,
    "instance_type": frozenset({"bentocloud"}),
}

_OPTIONS = (
    click.option(
        "--target",
        required=True,
        type=click.Choice(("kubernetes", "kserve", "compose", "bentocloud")),
        help="What is to run it.",
    ),
    click.option("--image", metavar="REF", help="The image, as its registry calls it."),
    click.option("--name", help="Of the objects.  [default: the model's]"),
    click.option("--namespace", help="Of the objects.  [default: none, for kubectl to say]"),
    click.option("--replicas", type=_COUNT, default=2, show_default=True, help="At least."),
    click.option("--max-replicas", type=_COUNT, help="Scale up to so many by the rows that wait."),
    click.option(
        "--wake-query",
        metavar="PROMQL",
        help="Above 0 while anybody asks, with or without pods; for --replicas 0.",
    ),
    click.option(
        "--prometheus",
        metavar="URL",
        default="http://prometheus-operated.monitoring:9090",
        show_default=True,
        help="Where KEDA asks.",
    ),
    click.option(
        "--layout",
        type=click.Choice(("blue-green", "single")),
        default="blue-green",
        show_default=True,
        help="Two Deployments for `mlctl promote`, or one.",
    ),
    click.option(
        "--slot",
        type=click.Choice(("blue", "green")),
        help="Only that Deployment, with pods: a candidate for what is there.",
    ),
    click.option("--gateway", metavar="[NAMESPACE/]NAME", help="The Gateway of the routes."),
    click.option("--host", "hosts", multiple=True, help="A host name of the route; may repeat."),
    click.option("--grpc-host", help="The host name of a GRPCRoute, with --layout single."),
    click.option(
        "--allow-from",
        multiple=True,
        default=("monitoring",),
        show_default=True,
        metavar="NAMESPACE|CIDR",
        help="Who may connect beside the own namespace and the Gateway's; may repeat.",
    ),
    click.option("--token-secret", metavar="SECRET", help="Ask callers for a token of it."),
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="MLCTL_X=VALUE",
        help="A setting of the server; may repeat.",
    ),
    click.option("--bench", type=_FILE, help="What `mlctl bench BENTO --json` printed."),
    click.option(
        "--mode",
        type=click.Choice(("standard", "knative")),
        default="standard",
        show_default=True,
        help="KServe's deployment mode.",
    ),
    click.option("--canary", type=click.IntRange(0, 100), help="Percent for this image."),
    click.option("--stable-image", metavar="REF", help="The one that keeps the rest."),
    click.option("--instance-type", help="BentoCloud's kind of machine."),
    click.option("--output", "folder", type=_FOLDER, help="Write the files into this folder."),
)


def manifest_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `mlctl manifests`."""
    return reduce(lambda done, option: option(done), reversed(_OPTIONS), function)
