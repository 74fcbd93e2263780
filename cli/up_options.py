"""The options of `mlctl up`, in the order in which its help lists them."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlctl.cli.options import PORT, Duration, option
from mlctl.cli.scaling import REPLICAS, ScalingOptions
from mlctl.cli.security_options import SecurityOptions

if TYPE_CHECKING:
    from mlctl.rollout.domain.kubernetes_target import KubernetesTarget
    from mlctl.rollout.domain.spec import DeploymentSettings

# A tick reads from the API server and every pod, so it is rarer than on one machine.
_TICK_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class UpOptions:
    """Where the deployment runs and listens, and what it reports."""

    host: str = option("127.0.0.1", help="Address to listen on.")
    port: int = option(8000, PORT, help="Port to listen on.")
    target: str = option(
        "local",
        click.Choice(("local", "kubernetes")),
        help="Where the Bento runs; kubernetes takes over running Deployments, see "
        "docs/kubernetes.md.",
    )
    ready_seconds: float | None = option(
        type=Duration("1s"),
        name="--ready-timeout",
        help="Limit for a Bento to load its model and become ready.  [default: 2m]",
    )
    metrics_port: int | None = option(
        type=PORT, help="Serve Prometheus metrics on this port of 127.0.0.1."
    )
    webhook: tuple[str, ...] = option(
        metavar="URL", envvar="MLCTL_WEBHOOKS", help="Send each event to this URL; repeatable."
    )
    no_runs: bool = option(help="Do not record rollouts as MLflow runs.")
    record_share: float = option(
        0.0,
        click.FloatRange(0, 1),
        help="Share of the requests whose predictions are recorded for `mlctl feedback`.",
    )
    keep_predictions_seconds: float = option(
        "7d",
        Duration("1s"),
        name="--keep-predictions",
        help="How long recorded predictions wait for their labels.",
    )
    all: bool = option(help="Start all deployments that ran before a reboot.")


@dataclass(frozen=True, kw_only=True)
class LocalOptions(ScalingOptions):
    """Fields of the settings of a deployment on this machine; a cluster's own objects have them."""

    replicas: int | None = option(type=REPLICAS, help="Bento processes per revision.  [default: 1]")
    workers: int | None = option(
        type=REPLICAS,
        help="Server processes in each replica; they share its ports.  [default: 1]",
    )
    request_seconds: float | None = option(
        type=Duration("1ms"),
        name="--request-timeout",
        help="The proxy ends a request with 504 after this time.  [default: 1m]",
    )
    stream_idle_seconds: float | None = option(
        type=Duration("1ms"),
        name="--stream-idle-timeout",
        help="The proxy ends a streaming response that is silent for this time.  [default: 5m]",
    )
    drain_seconds: float | None = option(
        type=Duration(),
        name="--drain-time",
        help="Time for requests in flight before a replica is stopped.  [default: 10s]",
    )


@dataclass(frozen=True, kw_only=True)
class KubernetesOptions:
    """The objects of a cluster that `--target kubernetes` takes over."""

    namespace: str = option("default", help="Namespace in the cluster.")
    route: str | None = option(help="HTTPRoute that splits the traffic.")
    services: str | None = option(metavar="blue=NAME,green=NAME", help="Service of each slot.")
    pods: str = option(
        "api",
        click.Choice(("api", "direct")),
        help="Read pods' metrics through the API server, or at their own addresses.",
    )
    context: str | None = option(help="Context of the kubeconfig.  [default: the current one]")


def deployment_settings(
    options: UpOptions, local: LocalOptions, cluster: KubernetesOptions, security: SecurityOptions
) -> DeploymentSettings:
    """Return the settings of a new deployment; usage errors for options of another target."""
    from mlctl.rollout.domain.spec import DeploymentSettings

    fields: dict[str, Any] = {
        "metrics_port": options.metrics_port,
        "webhooks": options.webhook,
        "record_share": options.record_share,
        "keep_predictions_seconds": options.keep_predictions_seconds,
    }
    if options.ready_seconds is not None:
        fields["ready_seconds"] = options.ready_seconds
    if options.no_runs:
        fields["runs"] = ()
    chosen = {name: value for name, value in asdict(local).items() if value is not None}
    if options.target == "kubernetes":
        if chosen:
            raise click.UsageError(
                "in a cluster the Deployments and the HTTPRoute have replicas and timeouts"
            )
        if security.tls_cert or security.tls_key or security.tls_client_ca:
            raise click.UsageError(
                "--tls-... is for --target local: in a cluster the Gateway has the certificate"
            )
        if options.record_share:
            raise click.UsageError("--record-share: predictions are not recorded in a cluster")
        return DeploymentSettings(
            tick_seconds=_TICK_SECONDS, kubernetes=_kubernetes_target(cluster), **fields
        )
    if cluster.route or cluster.services:
        raise click.UsageError("--route and --services are for --target kubernetes")
    bounds = local.bounds(local.replicas)
    if bounds is not None:
        chosen |= {"min_replicas": bounds[0], "replicas": max(1, bounds[0])}
    tls = tuple(map(str, security.files()))
    return DeploymentSettings(tls=tls, **{**fields, **chosen})


def _kubernetes_target(cluster: KubernetesOptions) -> KubernetesTarget:
    from mlctl.rollout.domain.kubernetes_target import KubernetesTarget, services_from

    if not (cluster.route and cluster.services):
        raise click.UsageError("--target kubernetes needs --route and --services")
    blue, green = services_from(cluster.services)
    config = os.environ.get("KUBECONFIG")
    file = str(Path(config).absolute()) if config else None
    return KubernetesTarget(
        cluster.namespace,
        cluster.route,
        blue,
        green,
        pods=cluster.pods,
        context=cluster.context,
        kubeconfig=file,
    )
