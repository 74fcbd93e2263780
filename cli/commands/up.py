"""`mlctl up`: a deployment on this machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from cli.kubernetes_options import kubernetes_options, kubernetes_settings
from cli.options import Duration
from cli.output import CommandOutput, reporting
from cli.reporting_options import reporting_options, reporting_settings
from cli.scaling import bound_options, settings_of
from cli.security_options import security_options, security_settings, warn_exposure

if TYPE_CHECKING:
    from rollout.domain.spec import DeploymentSettings
    from rollout.journal.records import Deployment

# What is set in a cluster's own resources.
_LOCAL = (
    "min_replicas",
    "max_replicas",
    "idle_seconds",
    "target_queue_rows",
    "cooldown_seconds",
    "request_seconds",
    "stream_idle_seconds",
    "drain_seconds",
)


@click.command()
@click.argument("name", required=False)
@click.argument("bento", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8000,
    show_default=True,
    help="Port to listen on.",
)
@click.option(
    "--replicas", type=click.IntRange(1, 64), help="Bento processes per revision.  [default: 1]"
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Server processes in each replica; they share its ports.",
)
@bound_options
@click.option(
    "--ready-timeout",
    "ready_seconds",
    type=Duration("1s"),
    help="Limit for a Bento to load its model and become ready.  [default: 2m]",
)
@click.option(
    "--request-timeout",
    "request_seconds",
    type=Duration("1ms"),
    help="The proxy ends a request with 504 after this time.  [default: 1m]",
)
@click.option(
    "--stream-idle-timeout",
    "stream_idle_seconds",
    type=Duration("1ms"),
    help="The proxy ends a streaming response that is silent for this time.  [default: 5m]",
)
@click.option(
    "--drain-time",
    "drain_seconds",
    type=Duration(),
    help="Time for requests in flight before a replica is stopped.  [default: 10s]",
)
@click.option(
    "--target",
    type=click.Choice(("local", "kubernetes")),
    default="local",
    show_default=True,
    help="Where the Bento runs; kubernetes takes over running Deployments, see docs/kubernetes.md.",
)
@security_options
@kubernetes_options
@reporting_options
@click.option(
    "--all", "everything", is_flag=True, help="Start all deployments that ran before a reboot."
)
@reporting
def up(
    output: CommandOutput,
    /,
    name: str | None,
    bento: str | None,
    host: str,
    port: int,
    replicas: int | None,
    workers: int,
    target: str,
    *,
    everything: bool,
    **others: Any,
) -> None:
    """Start a deployment NAME that serves BENTO.

    Returns when it answers. HTTP and gRPC share one port, behind Envoy. Everything runs
    detached; what dies is started again. `mlctl down NAME` stops it. Without BENTO, a deployment
    that is down is started with what it served; with --all, every one that was up when the
    machine went down.
    """
    from rollout.client import deployments
    from rollout.client.revisions import find_revision

    if everything or name is None or bento is None:
        _show(output, *_brought_back(name, everything=everything))
    else:
        insecure, guarded = security_settings(others, target)
        settings = _settings(target, others, replicas=replicas, workers=workers)
        settings = guarded(settings)
        if target == "local":
            encrypted, mutual = bool(settings.tls), len(settings.tls) == 3
            warn_exposure(output, host, mutual=mutual, encrypted=encrypted, insecure=insecure)
        revision = find_revision(bento)
        output.note(f"Starting {name} with {revision.bento} ...")
        _show(output, deployments.up(name, revision, port, host=host, settings=settings))


def _brought_back(name: str | None, *, everything: bool) -> tuple[Deployment, ...]:
    from rollout.client import deployments

    if everything and name is not None:
        raise click.UsageError("--all takes no NAME")
    if not everything and name is None:
        raise click.UsageError("Missing argument 'NAME'.")
    _reject_settings()
    return deployments.bring_back_all() if name is None else (deployments.bring_back(name),)


def _reject_settings() -> None:
    """What comes back keeps its settings: an option that would be without effect is an error."""
    context = click.get_current_context()
    for option in context.command.params:
        if not isinstance(option, click.Option) or option.name in ("everything", "as_json"):
            continue
        if context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"{option.opts[0]} needs a BENTO: without one a deployment comes back as it was"
            )


def _settings(
    target: str, options: dict[str, Any], *, replicas: int | None, workers: int
) -> DeploymentSettings:
    """Return the settings of a cluster or of this machine; these take fields out of `options`."""
    reported = reporting_settings(options)
    ready = options.pop("ready_seconds")
    local = {name: options.pop(name) for name in _LOCAL}
    remote = kubernetes_settings(target, **options)
    if remote is None:
        return reported(
            settings_of(replicas=replicas, workers=workers, ready_seconds=ready, **local)
        )
    if (replicas, local["min_replicas"], local["max_replicas"]) != (None, None, None):
        raise click.UsageError("in a cluster the Deployments say how many pods there are")
    if any(value is not None for value in local.values()):
        raise click.UsageError("in a cluster the HTTPRoute and the Deployments have the timeouts")
    return reported(remote if ready is None else replace(remote, ready_seconds=ready))


def _show(output: CommandOutput, *found: Deployment) -> None:
    from rollout.drivers.listener import url_of

    if output.as_json:
        documents = [_document(deployment) for deployment in found]
        output.document(documents[0] if len(documents) == 1 else {"deployments": documents})
        return
    for deployment in found:
        live, settings = deployment.live, deployment.settings
        if (cluster := settings.kubernetes) is not None:
            output.line(f"{deployment.name} serves {live.bento} through {cluster.where}")
            output.note(f"Live page: mlctl ui {deployment.name}")
            continue
        url = url_of(deployment.ports, settings)
        output.line(f"{deployment.name} serves {live.bento} on {url} (HTTP and gRPC)")
        model = "NAME" if live.models else live.name
        output.note(f"V2: POST {url}/v2/models/{model}/infer    typed: POST {url}/predict")
        output.note(f"Live page: mlctl ui {deployment.name}")


def _document(deployment: Deployment) -> dict[str, Any]:
    from rollout.drivers.listener import url_of

    live, settings = deployment.live, deployment.settings
    served = {"name": deployment.name, "bento": live.bento, "digest": live.digest}
    if (cluster := settings.kubernetes) is not None:
        return {**served, "namespace": cluster.namespace, "route": cluster.route}
    return {**served, "url": url_of(deployment.ports, settings), "replicas": settings.replicas}
