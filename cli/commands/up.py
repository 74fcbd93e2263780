"""`mlctl up`: a deployment on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mlctl.cli.options import takes
from mlctl.cli.output import CommandOutput, reporting
from mlctl.cli.security_options import SecurityOptions
from mlctl.cli.up_options import KubernetesOptions, LocalOptions, UpOptions, deployment_settings

if TYPE_CHECKING:
    from mlctl.rollout.journal.records import Deployment


@click.command()
@click.argument("name", required=False)
@click.argument("bento", required=False)
@takes(options=UpOptions, local=LocalOptions, security=SecurityOptions, cluster=KubernetesOptions)
@reporting
def up(
    output: CommandOutput,
    /,
    name: str | None,
    bento: str | None,
    options: UpOptions,
    local: LocalOptions,
    security: SecurityOptions,
    cluster: KubernetesOptions,
) -> None:
    """Start a deployment NAME that serves BENTO.

    Returns when it answers. HTTP and gRPC share one port, behind Envoy. Everything runs
    detached; what dies is started again. `mlctl down NAME` stops it. Without BENTO, a deployment
    that is down is started with what it served; with --all, every one that was up when the
    machine went down.
    """
    from mlctl.rollout.client import deployments
    from mlctl.rollout.client.revisions import find_revision

    if options.all or name is None or bento is None:
        _show(output, *_brought_back(name, everything=options.all))
        return
    settings = deployment_settings(options, local, cluster, security)
    if options.target == "local":
        security.warn_exposure(output, options.host)
    revision = find_revision(bento)
    output.note(f"Starting {name} with {revision.bento} ...")
    found = deployments.up(name, revision, options.port, host=options.host, settings=settings)
    _show(output, found)


def _brought_back(name: str | None, *, everything: bool) -> tuple[Deployment, ...]:
    from mlctl.rollout.client import deployments

    if everything and name is not None:
        raise click.UsageError("--all takes no NAME")
    if not everything and name is None:
        raise click.UsageError("Missing argument 'NAME'.")
    _reject_settings()
    return deployments.bring_back_all() if name is None else (deployments.bring_back(name),)


def _reject_settings() -> None:
    """Reject options: a deployment that is started again keeps its settings."""
    context = click.get_current_context()
    for option in context.command.params:
        if not isinstance(option, click.Option) or option.name in ("all", "as_json"):
            continue
        if context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"{option.opts[0]} needs a BENTO: without one a deployment comes back as it was"
            )


def _show(output: CommandOutput, *found: Deployment) -> None:
    from mlctl.rollout.drivers.listener import url_of

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
    from mlctl.rollout.drivers.listener import url_of

    live, settings = deployment.live, deployment.settings
    served = {"name": deployment.name, "bento": live.bento, "digest": live.digest}
    if (cluster := settings.kubernetes) is not None:
        return {**served, "namespace": cluster.namespace, "route": cluster.route}
    return {**served, "url": url_of(deployment.ports, settings), "replicas": settings.replicas}
