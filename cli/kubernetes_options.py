"""The options that name a deployment in a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rollout.domain.spec import DeploymentSettings

# A look asks the API server and every pod, so it is not taken as often as on one machine.
_TICK_SECONDS = 2.0

_OPTIONS = (
    click.option(
        "--namespace", default="default", show_default=True, help="Namespace in the cluster."
    ),
    click.option("--route", help="HTTPRoute that splits the traffic."),
    click.option("--services", metavar="blue=NAME,green=NAME", help="Service of each slot."),
    click.option(
        "--pods",
        type=click.Choice(("api", "direct")),
        default="api",
        show_default=True,
        help="Read pods' metrics through the API server, or at their own addresses.",
    ),
    click.option("--context", help="Context of the kubeconfig.  [default: the current one]"),
)


def kubernetes_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `--target kubernetes`."""
    return reduce(lambda done, option: option(done), reversed(_OPTIONS), function)


def kubernetes_settings(
    target: str,
    *,
    namespace: str,
    route: str | None,
    services: str | None,
    pods: str,
    context: str | None,
) -> DeploymentSettings | None:
    """The settings of a deployment in a cluster; None for one on this machine. INVALID_INPUT."""
    from rollout.domain.kubernetes_target import KubernetesTarget, services_from
    from rollout.domain.spec import DeploymentSettings

    if target != "kubernetes":
        if route or services:
            raise click.UsageError("--route and --services are for --target kubernetes")
        return None
    if not (route and services):
        raise click.UsageError("--target kubernetes needs --route and --services")
    blue, green = services_from(services)
    named = os.environ.get("KUBECONFIG")
    file = str(Path(named).absolute()) if named else None
    cluster = KubernetesTarget(namespace, route, blue, green, pods, context, file)
    return DeploymentSettings(tick_seconds=_TICK_SECONDS, kubernetes=cluster)
