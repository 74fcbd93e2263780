"""`mlctl manifests`: what runs a Bento's image elsewhere, as YAML."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from cli.options import OUTPUT_FOLDER, add_options
from cli.output import CommandOutput, reporting

if TYPE_CHECKING:
    from bento.manifests.plan import ManifestPlan
    from bento.manifests.runner_plan import RunnerPlan
    from bento.manifests.targets import TargetOptions

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
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
    "cpus": _RUNNERS | _BATCHES,
    "memory": _RUNNERS | _BATCHES,
    "secret": _RUNNERS | _AIRFLOW,
    "claim": _RUNNERS,
    "account": _RUNNERS | _AIRFLOW,
    "job_role": _AWS,
    "spot": _RUNNERS,
    "schedule": _AIRFLOW | {"batch"},
    "trigger_auth": _STREAM,
    "wake_query": _KUBERNETES,
    "prometheus": _KUBERNETES,
    "layout": _KUBERNETES,
    "slot": _KUBERNETES,
    "gateway": _KUBERNETES,
    "hosts": _KUBERNETES,
    "grpc_host": _KUBERNETES,
    "allow_from": _KUBERNETES | _STREAM,
    "mode": _KSERVE,
    "canary": _KSERVE,
    "stable_image": _KSERVE,
    "instance_type": frozenset({"bentocloud"}),
}

_OPTIONS = (
    click.option(
        "--target",
        required=True,
        type=click.Choice(
            ("kubernetes", "kserve", "compose", "bentocloud", "aws-batch", "airflow")
        ),
        help="Platform that runs the Bento.",
    ),
    click.option(
        "--runner",
        type=click.Choice(("batch", "stream")),
        help="Run a Job or a stream's Deployment; its options follow --.  [default: a server]",
    ),
    click.option("--image", metavar="REF", help="Reference of the image, best with its digest."),
    click.option("--name", help="Name of the objects.  [default: the model's]"),
    click.option("--namespace", help="Namespace of the objects.  [default: kubectl's]"),
    click.option(
        "--replicas",
        type=_COUNT,
        default=2,
        show_default=True,
        help="Number of pods; with --max-replicas, the minimum.",
    ),
    click.option(
        "--max-replicas",
        type=_COUNT,
        help="Scale up to this many pods: with the queued rows, or a stream's lag.",
    ),
    click.option(
        "--wake-query",
        metavar="PROMQL",
        help="Query that is above 0 while there are requests, even without pods; for --replicas 0.",
    ),
    click.option(
        "--prometheus",
        metavar="URL",
        default="http://prometheus-operated.monitoring:9090",
        show_default=True,
        help="Prometheus that KEDA queries.",
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
        help="Write only the Deployment of this slot: a candidate for a running release.",
    ),
    click.option("--gateway", metavar="[NAMESPACE/]NAME", help="Gateway of the routes."),
    click.option(
        "--hostname", "hosts", multiple=True, help="Host name of the HTTPRoute; repeatable."
    ),
    click.option(
        "--grpc-hostname", "grpc_host", help="Host name of a GRPCRoute, with --layout single."
    ),
    click.option(
        "--allow-from",
        multiple=True,
        default=("monitoring",),
        show_default=True,
        metavar="NAMESPACE|CIDR",
        help="Callers that may connect besides the namespace and the Gateway; repeatable.",
    ),
    click.option(
        "--token-secret", metavar="SECRET", help="Require a token of this Secret from callers."
    ),
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="MLCTL_X=VALUE",
        help="Setting of the server; repeatable.",
    ),
    click.option(
        "--bench", type=_FILE, help="Output of `mlctl bench BENTO --json`, to set CPU and memory."
    ),
    click.option(
        "--mode",
        type=click.Choice(("standard", "knative")),
        default="standard",
        show_default=True,
        help="Deployment mode of KServe.",
    ),
    click.option(
        "--canary", type=click.IntRange(0, 100), help="Percentage of the traffic for this image."
    ),
    click.option("--stable-image", metavar="REF", help="Image that keeps the rest of the traffic."),
    click.option("--instance-type", help="Machine type of BentoCloud."),
    click.option(
        "--schedule", metavar="CRON", help='Run the batch at these times (UTC): "0 2 * * *".'
    ),
    click.option(
        "--cpu",
        "cpus",
        type=click.IntRange(1, 1024),
        default=2,
        show_default=True,
        help="CPUs that a runner requests; a batch gets as many threads.",
    ),
    click.option(
        "--memory",
        type=click.IntRange(256),
        metavar="MIB",
        help="Memory of a runner in MiB.  [default: an estimate]",
    ),
    click.option(
        "--env-secret",
        "secret",
        metavar="SECRET",
        help="Secret whose keys become a runner's environment, such as credentials.",
    ),
    click.option(
        "--service-account",
        "account",
        metavar="NAME",
        help="ServiceAccount of a runner, for the identity that a cloud gives it.",
    ),
    click.option(
        "--job-role", metavar="ARN", help="IAM role of a job in AWS Batch, such as to read buckets."
    ),
    click.option(
        "--claim", metavar="NAME", help="PersistentVolumeClaim that a runner has at /data."
    ),
    click.option("--spot", is_flag=True, help="Tolerate and prefer spot nodes."),
    click.option(
        "--trigger-auth",
        metavar="NAME",
        help="TriggerAuthentication with which KEDA reads a stream's lag.",
    ),
    click.option(
        "--out",
        "folder",
        type=OUTPUT_FOLDER,
        help="Folder to write the files into.  [default: stdout]",
    ),
)


def _manifest_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return add_options(_OPTIONS, command)


@click.command()
@click.argument("bento")
@click.argument("runner_arguments", metavar="[-- OPTIONS]", nargs=-1)
@_manifest_options
@reporting
def manifests(
    output: CommandOutput,
    /,
    bento: str,
    target: str,
    runner: str | None,
    folder: Path | None,
    **given: Any,
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
    from bento.manifests.targets import ManifestTarget, RunnerTarget, runner_manifests, write
    from bento.manifests.targets import manifests as make

    _check(target, runner)
    plan: ManifestPlan | RunnerPlan
    if runner is not None:
        plan = _runner_plan(bento, runner, given)
        texts = runner_manifests(plan, RunnerTarget(target))
    else:
        plan = _plan(bento, given)
        texts = make(plan, ManifestTarget(target), _target_options(given))
    if folder is not None:
        write(folder, texts)
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
    if folder is None:
        click.echo("".join(texts.values()), nl=False)
    else:
        output.line(f"{', '.join(texts)} in {folder}: {plan.model.tag}")
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
        is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if is_given and key not in targets:
            option = next(each for each in context.command.params if each.name == name)
            shown = option.opts[0] if isinstance(option, click.Option) else "-- OPTIONS"
            raise click.UsageError(f"{shown} is not for {chosen}")


def _plan(bento: str, given: dict[str, Any]) -> ManifestPlan:
    from bento.manifests.plan import (
        ManifestLayout,
        ManifestPlan,
        ManifestSlot,
        NetworkAccess,
        Scaling,
        name_of,
        settings_of,
    )
    from bento.manifests.summary import summary_of, workers_of
    from services.runtime.bento_store import find_bento

    summary = summary_of(find_bento(bento))
    settings = settings_of(given["settings"])
    scaling = Scaling(
        given["replicas"], given["max_replicas"], given["wake_query"], given["prometheus"]
    )
    access = NetworkAccess(
        given["gateway"], given["hosts"], given["grpc_host"], given["allow_from"]
    )
    return ManifestPlan(
        name=given["name"] or name_of(summary.name),
        model=summary.model,
        image=given["image"] or "",
        resources=summary.resources(given["bench"], workers_of(settings)),
        namespace=given["namespace"],
        scaling=scaling,
        access=access,
        layout=ManifestLayout(given["layout"]),
        slot=ManifestSlot(given["slot"]) if given["slot"] else None,
        settings=settings,
        token_secret=given["token_secret"],
    )


def _runner_plan(bento: str, runner: str, given: dict[str, Any]) -> RunnerPlan:
    from bento.manifests import runner_plan
    from bento.manifests.plan import NetworkAccess, Scaling, name_of, settings_of
    from bento.manifests.resources import runner_resources
    from bento.manifests.summary import summary_of
    from services.runtime.bento_store import find_bento

    kind = runner_plan.Runner(runner)
    arguments, options = given["runner_arguments"], _runner_options(runner, given)
    runner_plan.check_locations(kind, options, given["claim"])
    summary = summary_of(find_bento(bento))
    cpus = given["cpus"]
    plan = runner_plan.RunnerPlan(
        name=f"{given['name'] or name_of(summary.name)}-{runner}",
        model=summary.model,
        image=given["image"] or "",
        resources=runner_resources(summary.model_bytes, cpus, given["memory"], gpu=summary.gpu),
        namespace=given["namespace"],
        settings=settings_of(given["settings"]),
        runner=kind,
        arguments=arguments,
        secret=given["secret"],
        claim=given["claim"],
        account=given["account"],
        job_role=given["job_role"],
        spot=given["spot"],
        schedule=given["schedule"],
        scaling=Scaling(given["replicas"], given["max_replicas"]),
        trigger_auth=given["trigger_auth"],
        access=NetworkAccess(allow=given["allow_from"]),
    )
    if kind is runner_plan.Runner.BATCH:
        return replace(
            plan,
            arguments=runner_plan.batch_arguments(arguments, options, cpus),
            grace_seconds=runner_plan.batch_grace(options),
        )
    plan = runner_plan.with_metrics(plan, options)
    if given["max_replicas"] is not None:
        return replace(plan, lag=runner_plan.lag_trigger(options))
    return plan


def _runner_options(runner: str, given: dict[str, Any]) -> dict[str, Any]:
    """Parse the options after -- as the image will; usage errors are the runner's own."""
    from cli.runners.image import image

    command = image.commands[runner]
    return command.make_context(f"... -- {runner}", list(given["runner_arguments"])).params


def _target_options(given: dict[str, Any]) -> TargetOptions:
    from bento.manifests.targets import Canary, KServeMode, TargetOptions

    percent, stable = given["canary"], given["stable_image"]
    if stable is not None and percent is None:
        raise click.UsageError("--stable-image is for a canary: give --canary")
    canary = None if percent is None else Canary(percent, stable)
    return TargetOptions(KServeMode(given["mode"]), canary, given["instance_type"])


def _warn(output: CommandOutput, plan: ManifestPlan | RunnerPlan, target: str) -> None:
    from bento.manifests.plan import ManifestPlan

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
