"""`mlctl manifests`: what runs a Bento's image elsewhere, as YAML."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from mlctl.cli.options import OUTPUT_FOLDER, option, takes
from mlctl.cli.output import CommandOutput, reporting

if TYPE_CHECKING:
    from mlctl.bento.manifests.plan import ManifestPlan
    from mlctl.bento.manifests.runner_plan import RunnerPlan
    from mlctl.bento.manifests.targets import TargetOptions

_COUNT = click.IntRange(0, 10_000)
_KUBERNETES = frozenset({"kubernetes"})
_KSERVE = frozenset({"kserve"})
_CLUSTERS = _KUBERNETES | _KSERVE
_IMAGES = _CLUSTERS | {"compose"}
_STREAM = frozenset({"stream"})
_RUNNERS = _STREAM | {"batch"}
_AIRFLOW = frozenset({"airflow"})
_AWS = frozenset({"aws-batch"})
_BATCHES = _AIRFLOW | _AWS
_SCALED = _CLUSTERS | _STREAM | {"bentocloud"}

# The targets, or runners on Kubernetes, of each parameter; the others are for all.
BELONGS = {
    "image": _IMAGES | _RUNNERS | _BATCHES,
    "bench": _IMAGES,
    "token_secret": _IMAGES,
    "namespace": _CLUSTERS | _RUNNERS | _AIRFLOW,
    "replicas": _SCALED,
    "max_replicas": _SCALED,
    "runner_arguments": _RUNNERS | _BATCHES,
    "cpu": _RUNNERS | _BATCHES,
    "memory": _RUNNERS | _BATCHES,
    "env_secret": _RUNNERS | _AIRFLOW,
    "claim": _RUNNERS,
    "service_account": _RUNNERS | _AIRFLOW,
    "job_role": _AWS,
    "spot": _RUNNERS,
    "schedule": _AIRFLOW | {"batch"},
    "trigger_auth": _STREAM,
    "wake_query": _KUBERNETES,
    "prometheus": _KUBERNETES,
    "layout": _KUBERNETES,
    "slot": _KUBERNETES,
    "gateway": _KUBERNETES,
    "hostname": _KUBERNETES,
    "grpc_hostname": _KUBERNETES,
    "allow_from": _KUBERNETES | _STREAM,
    "mode": _KSERVE,
    "canary": _KSERVE,
    "stable_image": _KSERVE,
    "instance_type": frozenset({"bentocloud"}),
}


@dataclass(frozen=True, kw_only=True)
class ManifestOptions:
    """The options of all targets and runners; `BELONGS` says which are for which."""

    target: str = option(
        type=click.Choice(
            ("kubernetes", "kserve", "compose", "bentocloud", "aws-batch", "airflow")
        ),
        required=True,
        help="Platform that runs the Bento.",
    )
    runner: str | None = option(
        type=click.Choice(("batch", "stream")),
        help="Run a Job or a stream's Deployment; its options follow --.  [default: a server]",
    )
    image: str = option(
        "", metavar="REF", show_default=False, help="Reference of the image, best with its digest."
    )
    name: str | None = option(help="Name of the objects.  [default: the model's]")
    namespace: str | None = option(help="Namespace of the objects.  [default: kubectl's]")
    replicas: int = option(2, _COUNT, help="Number of pods; with --max-replicas, the minimum.")
    max_replicas: int | None = option(
        type=_COUNT, help="Scale up to this many pods: with the queued rows, or a stream's lag."
    )
    wake_query: str | None = option(
        metavar="PROMQL",
        help="Query that is above 0 while there are requests, even without pods; for --replicas 0.",
    )
    prometheus: str = option(
        "http://prometheus-operated.monitoring:9090",
        metavar="URL",
        help="Prometheus that KEDA queries.",
    )
    layout: str = option(
        "blue-green",
        click.Choice(("blue-green", "single")),
        help="Two Deployments for `mlctl promote`, or one.",
    )
    slot: str | None = option(
        type=click.Choice(("blue", "green")),
        help="Write only the Deployment of this slot: a candidate for a running release.",
    )
    gateway: str | None = option(metavar="[NAMESPACE/]NAME", help="Gateway of the routes.")
    hostname: tuple[str, ...] = option(help="Host name of the HTTPRoute; repeatable.")
    grpc_hostname: str | None = option(help="Host name of a GRPCRoute, with --layout single.")
    allow_from: tuple[str, ...] = option(
        ("monitoring",),
        metavar="NAMESPACE|CIDR",
        help="Callers that may connect besides the namespace and the Gateway; repeatable.",
    )
    token_secret: str | None = option(
        metavar="SECRET", help="Require a token of this Secret from callers."
    )
    settings: tuple[str, ...] = option(
        name="--set", metavar="MLCTL_X=VALUE", help="Setting of the server; repeatable."
    )
    bench: Path | None = option(
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Output of `mlctl bench BENTO --json`, to set CPU and memory.",
    )
    mode: str = option(
        "standard", click.Choice(("standard", "knative")), help="Deployment mode of KServe."
    )
    canary: int | None = option(
        type=click.IntRange(0, 100), help="Percentage of the traffic for this image."
    )
    stable_image: str | None = option(
        metavar="REF", help="Image that keeps the rest of the traffic."
    )
    instance_type: str | None = option(help="Machine type of BentoCloud.")
    schedule: str | None = option(
        metavar="CRON", help='Run the batch at these times (UTC): "0 2 * * *".'
    )
    cpu: int = option(
        2,
        click.IntRange(1, 1024),
        help="CPUs that a runner requests; a batch gets as many threads.",
    )
    memory: int | None = option(
        type=click.IntRange(256),
        metavar="MIB",
        help="Memory of a runner in MiB.  [default: an estimate]",
    )
    env_secret: str | None = option(
        metavar="SECRET",
        help="Secret whose keys become a runner's environment, such as credentials.",
    )
    service_account: str | None = option(
        metavar="NAME", help="ServiceAccount of a runner, for the identity that a cloud gives it."
    )
    job_role: str | None = option(
        metavar="ARN", help="IAM role of a job in AWS Batch, such as to read buckets."
    )
    claim: str | None = option(
        metavar="NAME", help="PersistentVolumeClaim that a runner has at /data."
    )
    spot: bool = option(help="Tolerate and prefer spot nodes.")
    trigger_auth: str | None = option(
        metavar="NAME", help="TriggerAuthentication with which KEDA reads a stream's lag."
    )
    out: Path | None = option(
        type=OUTPUT_FOLDER, help="Folder to write the files into.  [default: stdout]"
    )


@click.command()
@click.argument("bento")
@click.argument("runner_arguments", metavar="[-- OPTIONS]", nargs=-1)
@takes(options=ManifestOptions)
@reporting
def manifests(
    output: CommandOutput,
    /,
    bento: str,
    runner_arguments: tuple[str, ...],
    options: ManifestOptions,
) -> None:
    """Write manifests that run BENTO on Kubernetes and others.

    BENTO is NAME:VERSION, or NAME for the newest. With --runner, the options after -- are those of
    `mlctl batch run` or `mlctl stream run`:

    \b
      mlctl manifests digits --target kubernetes --runner batch --image REF \\
          --schedule "0 2 * * *" -- --in s3://data/rows/ --out 's3://data/scores/$(JOB_NAME)/'

    --target aws-batch writes a job definition, --target airflow a DAG; both need --runner batch.

    Only writes files, or prints them without --out: nothing is deployed. The same Bento and options
    always give the same bytes.
    """
    from mlctl.bento.manifests.targets import ManifestTarget, RunnerTarget, runner_manifests, write
    from mlctl.bento.manifests.targets import manifests as make

    target = options.target
    _check(target, options.runner)
    plan: ManifestPlan | RunnerPlan
    if options.runner is not None:
        plan = _runner_plan(bento, options.runner, runner_arguments, options)
        texts = runner_manifests(plan, RunnerTarget(target))
    else:
        plan = _plan(bento, options)
        texts = make(plan, ManifestTarget(target), _target_options(options))
    if options.out is not None:
        write(options.out, texts)
    if output.as_json:
        output.document(
            {
                "bento": plan.model.tag,
                "digest": plan.model.digest,
                "measured": plan.resources.measured,
                "resources": plan.resources.reason,
                "files": texts,
            }
        )
        return
    if options.out is None:
        click.echo("".join(texts.values()), nl=False)
    else:
        output.line(f"{', '.join(texts)} in {options.out}: {plan.model.tag}")
    _warn(output, plan, target)


def _check(target: str, runner: str | None) -> None:
    """Reject options of another target or runner, which would have no effect."""
    context = click.get_current_context()
    if target in _BATCHES and runner != "batch":
        raise click.UsageError(f"--target {target} needs --runner batch")
    if runner is not None and target not in _BATCHES | _KUBERNETES:
        raise click.UsageError(f"--runner is not for --target {target}")
    key = runner if runner is not None and target == "kubernetes" else target
    chosen = f"--runner {runner}" if key == runner else f"--target {target}"
    for name, targets in BELONGS.items():
        is_set = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if is_set and key not in targets:
            option = next(each for each in context.command.params if each.name == name)
            shown = option.opts[0] if isinstance(option, click.Option) else "-- OPTIONS"
            raise click.UsageError(f"{shown} is not for {chosen}")


def _plan(bento: str, options: ManifestOptions) -> ManifestPlan:
    from mlctl.bento.manifests.plan import (
        ManifestLayout,
        ManifestPlan,
        ManifestSlot,
        NetworkAccess,
        Scaling,
        name_of,
        settings_of,
    )
    from mlctl.bento.manifests.summary import summary_of, workers_of
    from mlctl.services.layout.bento_store import find_bento

    summary = summary_of(find_bento(bento))
    settings = settings_of(options.settings)
    return ManifestPlan(
        name=options.name or name_of(summary.name),
        model=summary.model,
        image=options.image,
        resources=summary.resources(options.bench, workers_of(settings)),
        namespace=options.namespace,
        scaling=Scaling(
            options.replicas, options.max_replicas, options.wake_query, options.prometheus
        ),
        access=NetworkAccess(
            options.gateway, options.hostname, options.grpc_hostname, options.allow_from
        ),
        layout=ManifestLayout(options.layout),
        slot=ManifestSlot(options.slot) if options.slot else None,
        settings=settings,
        token_secret=options.token_secret,
    )


def _runner_plan(
    bento: str, runner: str, arguments: tuple[str, ...], options: ManifestOptions
) -> RunnerPlan:
    from mlctl.bento.manifests import runner_plan
    from mlctl.bento.manifests.plan import NetworkAccess, Scaling, name_of, settings_of
    from mlctl.bento.manifests.resources import runner_resources
    from mlctl.bento.manifests.summary import summary_of
    from mlctl.cli.runners.image import image
    from mlctl.services.layout.bento_store import find_bento

    # Usage errors after -- are the runner's own.
    run = image.commands[runner].make_context(f"... -- {runner}", list(arguments)).params
    kind = runner_plan.Runner(runner)
    runner_plan.check_locations(kind, run, options.claim)
    summary = summary_of(find_bento(bento))
    plan = runner_plan.RunnerPlan(
        name=f"{options.name or name_of(summary.name)}-{runner}",
        model=summary.model,
        image=options.image,
        resources=runner_resources(
            summary.model_bytes, options.cpu, options.memory, gpu=summary.gpu
        ),
        namespace=options.namespace,
        settings=settings_of(options.settings),
        runner=kind,
        arguments=arguments,
        secret=options.env_secret,
        claim=options.claim,
        account=options.service_account,
        job_role=options.job_role,
        spot=options.spot,
        schedule=options.schedule,
        scaling=Scaling(options.replicas, options.max_replicas),
        trigger_auth=options.trigger_auth,
        access=NetworkAccess(allow=options.allow_from),
    )
    if kind is runner_plan.Runner.BATCH:
        return replace(
            plan,
            arguments=runner_plan.batch_arguments(arguments, run, options.cpu),
            grace_seconds=runner_plan.batch_grace(run),
        )
    plan = runner_plan.with_metrics(plan, run)
    if options.max_replicas is not None:
        return replace(plan, lag=runner_plan.lag_trigger(run))
    return plan


def _target_options(options: ManifestOptions) -> TargetOptions:
    from mlctl.bento.manifests.targets import Canary, KServeMode, TargetOptions

    if options.stable_image is not None and options.canary is None:
        raise click.UsageError("--stable-image is for a canary: give --canary")
    canary = None if options.canary is None else Canary(options.canary, options.stable_image)
    return TargetOptions(KServeMode(options.mode), canary, options.instance_type)


def _warn(output: CommandOutput, plan: ManifestPlan | RunnerPlan, target: str) -> None:
    from mlctl.bento.manifests.plan import ManifestPlan

    if plan.image and "@sha256:" not in plan.image:
        output.note("The image is not named by its digest: what runs can change under its name.")
    if not isinstance(plan, ManifestPlan):
        if not plan.resources.measured:
            output.note(f"Resources: {plan.resources.reason}.")
        name = "{{ ds }}" if target == "airflow" else "$(JOB_NAME)"
        if plan.schedule is not None and not any(name in each for each in plan.arguments):
            output.note(
                "All runs have the same --out: one that finds other rows than the run before ends "
                f"with exit code 8. Put {name} into --out."
            )
        return
    if not plan.resources.measured and target != "bentocloud":
        output.note(f"CPU and memory are {plan.resources.reason}.")
    if target == "kubernetes" and plan.access.gateway is None and plan.slot is None:
        output.note("No route: --gateway names the Gateway that requests come through.")
    if plan.token_secret is None and target in ("kubernetes", "kserve"):
        output.note(
            "Every client that reaches the pods is served: --token-secret requires a token."
        )
