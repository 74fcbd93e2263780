"""`mlctl manifests`: what runs a Bento's image elsewhere, as YAML."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from cli.options import OUTPUT_FOLDER, add_options
from cli.output import CommandOutput, reporting

if TYPE_CHECKING:
    from bento.manifests.plan import ManifestPlan
    from bento.manifests.targets import TargetOptions

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
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
        help="Platform that runs the Bento.",
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
        "--max-replicas", type=_COUNT, help="Scale with the queued rows, up to this many pods."
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
        help="Who may connect, besides the own namespace and the Gateway's; repeatable.",
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
@_manifest_options
@reporting
def manifests(
    output: CommandOutput, /, bento: str, target: str, folder: Path | None, **given: Any
) -> None:
    """Write manifests that run BENTO on Kubernetes and others.

    BENTO is NAME:VERSION, or NAME for the newest.

    Only writes files, or prints them without --out: nothing is deployed. The same Bento and options
    always give the same bytes.
    """
    from bento.manifests.targets import ManifestTarget, write
    from bento.manifests.targets import manifests as make

    _check(target)
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


def _check(target: str) -> None:
    """Reject options of another target, which would have no effect."""
    context = click.get_current_context()
    for name, targets in BELONGS.items():
        is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if is_given and target not in targets:
            option = next(each for each in context.command.params if each.name == name)
            raise click.UsageError(f"{option.opts[0]} is not for --target {target}")


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


def _target_options(given: dict[str, Any]) -> TargetOptions:
    from bento.manifests.targets import Canary, KServeMode, TargetOptions

    percent, stable = given["canary"], given["stable_image"]
    if stable is not None and percent is None:
        raise click.UsageError("--stable-image is for a canary: give --canary")
    canary = None if percent is None else Canary(percent, stable)
    return TargetOptions(KServeMode(given["mode"]), canary, given["instance_type"])


def _warn(output: CommandOutput, plan: ManifestPlan, target: str) -> None:
    if not plan.resources.measured and target != "bentocloud":
        output.note(f"CPU and memory are {plan.resources.reason}.")
    if plan.image and "@sha256:" not in plan.image:
        output.note("The image is not named by its digest: what runs can change under its name.")
    if target == "kubernetes" and plan.access.gateway is None and plan.slot is None:
        output.note("No route: --gateway names the Gateway that requests come through.")
    if plan.token_secret is None and target in ("kubernetes", "kserve"):
        output.note("Whoever reaches the pods may ask: --token-secret asks callers for a token.")
