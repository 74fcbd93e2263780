"""`mlctl show`: one page of facts about a model, a bundle, a Bento or a digest."""

from __future__ import annotations

from typing import Any

import click

from mlctl.cli.output import CommandOutput, reporting

_NUMBERS = ("size_bytes", "score", "drop_high", "agreement")


@click.command()
@click.argument("reference", metavar="MODEL|BUNDLE|BENTO|DIGEST")
@reporting
def show(output: CommandOutput, reference: str) -> None:
    """Show what one digest is, where it came from, and where it serves.

    MODEL is a registered model as `mlctl build` takes it: NAME is its newest optimized version.
    BUNDLE is the folder of one, BENTO a NAME:VERSION, DIGEST at least the first four digits. The
    page has the signature, the variants that were tried, the training run, every rollout with its
    verdict, and what serves it now.
    """
    from mlctl.rollout.client.provenance import chain, find_digest, sources

    found = sources()
    digest, facts = find_digest(reference, found)
    document = chain(digest, found, facts)
    if output.as_json:
        output.document(document)
    else:
        _show(output, document)


def _show(output: CommandOutput, chain: dict[str, Any]) -> None:
    from mlctl.rollout.client.rendering import local_time, verdict_text

    output.line(f"digest     {chain['digest']}")
    if not chain["models"]:
        _show_origin(output, chain)
    for model in chain["models"]:
        output.line(f"model      {model['name']}, digest {model['digest']}")
        _show_origin(output, model)
    output.line(f"bento      {', '.join(chain['bentos']) or 'not in the store'}")
    for each in chain["rollouts"]:
        outcome = each["outcome"] or f"under way ({each['phase']})"
        output.line(
            f"rollout    {each['id']} of {each['deployment']}, {local_time(each['created'])}: "
            f"{outcome}"
        )
        if each["verdict"]:
            output.line(f"           {verdict_text(each['verdict'])}")
    if not chain["rollouts"]:
        output.line("rollout    none")
    output.line(f"serves     {', '.join(chain['serves']) or 'nothing now'}")


def _show_origin(output: CommandOutput, model: dict[str, Any]) -> None:
    for part in ("source", "optimized"):
        output.line(f"{part:<10} {_version(model[part])}")
    for side in ("inputs", "outputs"):
        tensors = model["signature"] and ", ".join(map(_tensor, model["signature"][side]))
        output.line(f"{side:<10} {tensors or 'not on this machine'}")
    if model["generation"] is not None:
        output.line(f"generation {_pairs(model['generation'])}")
    output.line(f"variant    {_pairs(model['variant'])}")
    output.line(f"evidence   {_pairs(model['evidence'])}")
    for each in model["variants"] or ():
        mark = ", chosen" if each["chosen"] else ""
        numbers = {name: each[name] for name in _NUMBERS}
        output.line(f"tried      {each['recipe']}{mark}: {each['failure'] or _pairs(numbers)}")


def _tensor(spec: dict[str, Any]) -> str:
    return f"{spec['name']} {spec['dtype']} {spec['shape']}"


def _version(part: dict[str, Any] | None) -> str:
    if part is None:
        return "not in the registry"
    run = f", run {part['run']}" if part["run"] else ""
    return f"{part['uri']}{run}{''.join(f' @{alias}' for alias in part['aliases'])}"


def _pairs(values: dict[str, Any] | None) -> str:
    if values is None:
        return "not on this machine"
    known = {name: value for name, value in values.items() if value is not None}
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in known.items()
    )
