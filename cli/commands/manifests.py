"""`mlctl manifests`: what runs a Bento's image elsewhere, as YAML."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from cli.manifest_options import BELONGS, manifest_options
from cli.output import CommandOutput, reporting

if TYPE_CHECKING:
    from bento.manifests.plan import ManifestPlan
    from bento.manifests.targets import TargetOptions


@click.command()
@click.argument("bento")
@manifest_options
@reporting
def manifests(
    output: CommandOutput, /, bento: str, target: str, folder: Path | None, **given: Any
) -> None:
    """Write the manifests that run BENTO (NAME:VERSION, or NAME for the newest) elsewhere.

    Nothing is sent anywhere. The same Bento and options always give the same bytes. Without
    --output everything is printed.
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
    """Options of another target would be left out silently."""
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
