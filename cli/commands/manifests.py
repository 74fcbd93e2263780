"""`mlctl manifests`: what runs a Bento's image elsewhere, one subcommand for each platform."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlctl.cli.options import OUTPUT_FOLDER, option, takes
from mlctl.cli.output import CommandOutput, reporting

if TYPE_CHECKING:
    from mlctl.bento.manifests.plan import ManifestPlan
    from mlctl.bento.manifests.runner_plan import RunnerPlan
    from mlctl.bento.manifests.targets import TargetOptions

_COUNT = click.IntRange(0, 10_000)
_BENTO = click.argument("bento")
_ARGUMENTS = click.argument("arguments", metavar="[-- OPTIONS]", nargs=-1)
_MORE_PODS = "Scale up to this many pods, "


@dataclass(frozen=True, kw_only=True)
class ObjectOptions:
    """What all platforms take."""

    name: str | None = option(help="Name of the objects.  [default: the model's]")
    settings: tuple[str, ...] = option(
        name="--set", metavar="MLCTL_X=VALUE", help="Setting of the process; repeatable."
    )
    out: Path | None = option(
        type=OUTPUT_FOLDER, help="Folder to write the files into.  [default: stdout]"
    )


@dataclass(frozen=True, kw_only=True)
class ImageOptions(ObjectOptions):
    """What all platforms take that run the image of `mlctl containerize`."""

    image: str = option(
        "", metavar="REF", show_default=False, help="Reference of the image, best with its digest."
    )


@dataclass(frozen=True, kw_only=True)
class ServerOptions(ImageOptions):
    """A server that runs from the image: `mlctl manifests compose`."""

    token_secret: str | None = option(
        metavar="SECRET", help="Require a token of this Secret from callers."
    )
    bench: Path | None = option(
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Output of `mlctl bench BENTO --json`, to set CPU and memory.",
    )


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(ServerOptions):
    """A server in a cluster."""

    namespace: str | None = option(help="Namespace of the objects.  [default: kubectl's]")
    replicas: int = option(2, _COUNT, help="Number of pods; with --max-replicas, the minimum.")
    max_replicas: int | None = option(type=_COUNT, help=_MORE_PODS + "with the queued rows.")


@dataclass(frozen=True, kw_only=True)
class KubernetesServerOptions(ClusterOptions):
    """`mlctl manifests kubernetes`."""

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
    wake_query: str | None = option(
        metavar="PROMQL",
        help="Query that is above 0 while there are requests, even without pods; for --replicas 0.",
    )
    prometheus: str = option(
        "http://prometheus-operated.monitoring:9090",
        metavar="URL",
        help="Prometheus that KEDA queries.",
    )


@dataclass(frozen=True, kw_only=True)
class KServeOptions(ClusterOptions):
    """`mlctl manifests kserve`."""

    mode: str = option(
        "standard", click.Choice(("standard", "knative")), help="Deployment mode of KServe."
    )
    canary: int | None = option(
        type=click.IntRange(0, 100), help="Percentage of the traffic for this image."
    )
    stable_image: str | None = option(
        metavar="REF", help="Image that keeps the rest of the traffic."
    )


@dataclass(frozen=True, kw_only=True)
class BentoCloudOptions(ObjectOptions):
    """`mlctl manifests bentocloud`, which runs the Bento itself."""

    replicas: int = option(2, _COUNT, help="Number of replicas; with --max-replicas, the minimum.")
    max_replicas: int | None = option(type=_COUNT, help="Scale up to this many replicas.")
    instance_type: str | None = option(help="Machine type of BentoCloud.")


@dataclass(frozen=True, kw_only=True)
class RunnerOptions(ImageOptions):
    """A batch job or a stream."""

    cpu: int = option(
        2, click.IntRange(1, 1024), help="CPUs to request; a batch job gets as many threads."
    )
    memory: int | None = option(
        type=click.IntRange(256), metavar="MIB", help="Memory in MiB.  [default: an estimate]"
    )


@dataclass(frozen=True, kw_only=True)
class PodOptions(RunnerOptions):
    """A runner in a pod."""

    namespace: str | None = option(help="Namespace of the objects.  [default: kubectl's]")
    env_secret: str | None = option(
        metavar="SECRET", help="Secret whose keys become variables, such as credentials."
    )
    service_account: str | None = option(
        metavar="NAME", help="ServiceAccount, for the identity that a cloud gives it."
    )


@dataclass(frozen=True, kw_only=True)
class KubernetesRunnerOptions(PodOptions):
    """A runner on Kubernetes."""

    claim: str | None = option(metavar="NAME", help="PersistentVolumeClaim to mount at /data.")
    spot: bool = option(help="Tolerate and prefer spot nodes.")


@dataclass(frozen=True, kw_only=True)
class JobOptions(KubernetesRunnerOptions):
    """`mlctl manifests job`."""

    schedule: str | None = option(metavar="CRON", help='Run at these times (UTC): "0 2 * * *".')


@dataclass(frozen=True, kw_only=True)
class StreamOptions(KubernetesRunnerOptions):
    """`mlctl manifests stream`."""

    replicas: int = option(2, _COUNT, help="Number of pods; with --max-replicas, the minimum.")
    max_replicas: int | None = option(type=_COUNT, help=_MORE_PODS + "with the stream's lag.")
    trigger_auth: str | None = option(
        metavar="NAME", help="TriggerAuthentication with which KEDA reads the lag."
    )
    allow_from: tuple[str, ...] = option(
        ("monitoring",),
        metavar="NAMESPACE|CIDR",
        help="Callers that may read the metrics besides the namespace; repeatable.",
    )


@dataclass(frozen=True, kw_only=True)
class AwsBatchOptions(RunnerOptions):
    """`mlctl manifests aws-batch`."""

    job_role: str | None = option(
        metavar="ARN", help="IAM role of the job, such as to read buckets."
    )


@dataclass(frozen=True, kw_only=True)
class AirflowOptions(PodOptions):
    """`mlctl manifests airflow`."""

    schedule: str | None = option(metavar="CRON", help='Run at these times (UTC): "0 2 * * *".')


@click.group()
def manifests() -> None:
    """Write manifests that run a Bento on Kubernetes and others.

    BENTO is NAME:VERSION, or NAME for the newest. The options of a runner follow --, as for `mlctl
    batch run` and `mlctl stream run`. Nothing is deployed: files are written, or printed without
    --out. The same Bento and options always give the same bytes.
    """


@manifests.command()
@_BENTO
@takes(options=KubernetesServerOptions)
@reporting
def kubernetes(output: CommandOutput, /, bento: str, options: KubernetesServerOptions) -> None:
    """Run a server on Kubernetes, with routes and scaling."""
    from mlctl.bento.manifests.plan import ManifestLayout, ManifestSlot, NetworkAccess, Scaling

    plan = replace(
        _server(bento, options),
        namespace=options.namespace,
        scaling=Scaling(
            options.replicas, options.max_replicas, options.wake_query, options.prometheus
        ),
        access=NetworkAccess(
            options.gateway, options.hostname, options.grpc_hostname, options.allow_from
        ),
        layout=ManifestLayout(options.layout),
        slot=ManifestSlot(options.slot) if options.slot else None,
    )
    _write_server(output, plan, "kubernetes", options.out)


@manifests.command()
@_BENTO
@takes(options=KServeOptions)
@reporting
def kserve(output: CommandOutput, /, bento: str, options: KServeOptions) -> None:
    """Run a server on KServe: an InferenceService.

    \b
    Example:
      mlctl manifests kserve digits:TAG2 --image NEW --canary 10 --stable-image OLD
    """
    from mlctl.bento.manifests.plan import Scaling
    from mlctl.bento.manifests.targets import Canary, KServeMode, TargetOptions

    if options.stable_image is not None and options.canary is None:
        raise click.UsageError("--stable-image is for a canary: give --canary")
    canary = None if options.canary is None else Canary(options.canary, options.stable_image)
    plan = replace(
        _server(bento, options),
        namespace=options.namespace,
        scaling=Scaling(options.replicas, options.max_replicas),
    )
    target_options = TargetOptions(KServeMode(options.mode), canary)
    _write_server(output, plan, "kserve", options.out, target_options)


@manifests.command()
@_BENTO
@takes(options=ServerOptions)
@reporting
def compose(output: CommandOutput, /, bento: str, options: ServerOptions) -> None:
    """Run a server with Docker Compose."""
    _write_server(output, _server(bento, options), "compose", options.out)


@manifests.command()
@_BENTO
@takes(options=BentoCloudOptions)
@reporting
def bentocloud(output: CommandOutput, /, bento: str, options: BentoCloudOptions) -> None:
    """Run a server on BentoCloud."""
    from mlctl.bento.manifests.plan import Scaling
    from mlctl.bento.manifests.targets import TargetOptions

    plan = replace(_server(bento, options), scaling=Scaling(options.replicas, options.max_replicas))
    target_options = TargetOptions(instance_type=options.instance_type)
    _write_server(output, plan, "bentocloud", options.out, target_options)


@manifests.command()
@_BENTO
@_ARGUMENTS
@takes(options=JobOptions)
@reporting
def job(
    output: CommandOutput, /, bento: str, arguments: tuple[str, ...], options: JobOptions
) -> None:
    """Run a batch job on Kubernetes: a Job or CronJob.

    \b
    Example:
      mlctl manifests job digits --image REF --schedule "0 2 * * *" \\
          -- --in s3://data/rows/ --out 's3://data/scores/$(JOB_NAME)/'
    """
    plan, _ = _runner(bento, "batch", arguments, options, options.claim)
    plan = replace(_in_pod(plan, options), spot=options.spot, schedule=options.schedule)
    _write_runner(output, plan, "kubernetes", options.out)


@manifests.command()
@_BENTO
@_ARGUMENTS
@takes(options=StreamOptions)
@reporting
def stream(
    output: CommandOutput, /, bento: str, arguments: tuple[str, ...], options: StreamOptions
) -> None:
    """Run a stream on Kubernetes: a Deployment.

    \b
    Example:
      mlctl manifests stream digits --image REF --max-replicas 8 \\
          -- --in kafka://broker:9092#orders --out kafka://broker:9092#scores
    """
    from mlctl.bento.manifests.plan import NetworkAccess, Scaling
    from mlctl.bento.manifests.runner_plan import lag_trigger

    plan, run = _runner(bento, "stream", arguments, options, options.claim)
    plan = replace(
        _in_pod(plan, options),
        spot=options.spot,
        scaling=Scaling(options.replicas, options.max_replicas),
        trigger_auth=options.trigger_auth,
        access=NetworkAccess(allow=options.allow_from),
        lag=None if options.max_replicas is None else lag_trigger(run),
    )
    _write_runner(output, plan, "kubernetes", options.out)


@manifests.command("aws-batch")
@_BENTO
@_ARGUMENTS
@takes(options=AwsBatchOptions)
@reporting
def aws_batch(
    output: CommandOutput, /, bento: str, arguments: tuple[str, ...], options: AwsBatchOptions
) -> None:
    """Run a batch job on AWS Batch: a job definition."""
    plan, _ = _runner(bento, "batch", arguments, options)
    _write_runner(output, replace(plan, job_role=options.job_role), "aws-batch", options.out)


@manifests.command()
@_BENTO
@_ARGUMENTS
@takes(options=AirflowOptions)
@reporting
def airflow(
    output: CommandOutput, /, bento: str, arguments: tuple[str, ...], options: AirflowOptions
) -> None:
    """Run a batch job with Airflow: a DAG."""
    plan, _ = _runner(bento, "batch", arguments, options)
    plan = replace(_in_pod(plan, options), schedule=options.schedule)
    _write_runner(output, plan, "airflow", options.out)


def _server(bento: str, options: ObjectOptions) -> ManifestPlan:
    from mlctl.bento.manifests.plan import ManifestPlan, name_of, settings_of
    from mlctl.bento.manifests.summary import summary_of, workers_of
    from mlctl.services.layout.bento_store import find_bento

    summary = summary_of(find_bento(bento))
    settings = settings_of(options.settings)
    server = options if isinstance(options, ServerOptions) else ServerOptions()
    return ManifestPlan(
        name=options.name or name_of(summary.name),
        model=summary.model,
        image=server.image,
        resources=summary.resources(server.bench, workers_of(settings)),
        settings=settings,
        token_secret=server.token_secret,
    )


def _runner(
    bento: str,
    kind: str,
    arguments: tuple[str, ...],
    options: RunnerOptions,
    claim: str | None = None,
) -> tuple[RunnerPlan, Mapping[str, object]]:
    """Return the plan of a runner, and the values of its own options."""
    from mlctl.bento.manifests import runner_plan
    from mlctl.bento.manifests.plan import name_of, settings_of
    from mlctl.bento.manifests.resources import runner_resources
    from mlctl.bento.manifests.summary import summary_of
    from mlctl.cli.runners.image import image
    from mlctl.services.layout.bento_store import find_bento

    # Usage errors after -- are the runner's own.
    run = image.commands[kind].make_context(f"... -- {kind}", list(arguments)).params
    runner = runner_plan.Runner(kind)
    runner_plan.check_locations(runner, run, claim)
    summary = summary_of(find_bento(bento))
    plan = runner_plan.RunnerPlan(
        name=f"{options.name or name_of(summary.name)}-{kind}",
        model=summary.model,
        image=options.image,
        resources=runner_resources(
            summary.model_bytes, options.cpu, options.memory, gpu=summary.gpu
        ),
        settings=settings_of(options.settings),
        runner=runner,
        arguments=arguments,
        claim=claim,
    )
    if runner is runner_plan.Runner.STREAM:
        return runner_plan.with_metrics(plan, run), run
    arguments = runner_plan.batch_arguments(arguments, run, options.cpu)
    return replace(plan, arguments=arguments, grace_seconds=runner_plan.batch_grace(run)), run


def _in_pod(plan: RunnerPlan, options: PodOptions) -> RunnerPlan:
    return replace(
        plan,
        namespace=options.namespace,
        secret=options.env_secret,
        account=options.service_account,
    )


def _write_server(
    output: CommandOutput,
    plan: ManifestPlan,
    target: str,
    out: Path | None,
    options: TargetOptions | None = None,
) -> None:
    from mlctl.bento.manifests.targets import ManifestTarget
    from mlctl.bento.manifests.targets import manifests as make

    _write(output, plan, make(plan, ManifestTarget(target), options), out)
    if output.as_json:
        return
    if not plan.resources.measured and target != "bentocloud":
        output.note(f"CPU and memory are {plan.resources.reason}.")
    if target == "kubernetes" and plan.access.gateway is None and plan.slot is None:
        output.note("No route: --gateway names the Gateway that requests come through.")
    if plan.token_secret is None and target in ("kubernetes", "kserve"):
        output.note(
            "Every client that reaches the pods is served: --token-secret requires a token."
        )


def _write_runner(output: CommandOutput, plan: RunnerPlan, target: str, out: Path | None) -> None:
    from mlctl.bento.manifests.targets import RunnerTarget, runner_manifests

    _write(output, plan, runner_manifests(plan, RunnerTarget(target)), out)
    if output.as_json:
        return
    if not plan.resources.measured:
        output.note(f"Resources: {plan.resources.reason}.")
    name = "{{ ds }}" if target == "airflow" else "$(JOB_NAME)"
    if plan.schedule is not None and not any(name in each for each in plan.arguments):
        output.note(
            "All runs have the same --out: one that finds other rows than the run before ends "
            f"with exit code 8. Put {name} into --out."
        )


def _write(
    output: CommandOutput,
    plan: ManifestPlan | RunnerPlan,
    texts: Mapping[str, str],
    out: Path | None,
) -> None:
    from mlctl.bento.manifests.targets import write

    if out is not None:
        write(out, texts)
    if output.as_json:
        output.document(
            {
                "bento": plan.model.tag,
                "digest": plan.model.digest,
                "measured": plan.resources.measured,
                "resources": plan.resources.reason,
                "files": dict(texts),
            }
        )
        return
    if out is None:
        click.echo("".join(texts.values()), nl=False)
    else:
        output.line(f"{', '.join(texts)} in {out}: {plan.model.tag}")
    if plan.image and "@sha256:" not in plan.image:
        output.note("The image is not named by its digest: what runs can change under its name.")
