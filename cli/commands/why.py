"""`mlctl why`: the whole chain behind a digest."""

from __future__ import annotations

from typing import Any

import click

from cli.output import CommandOutput, reporting


@click.command()
@click.argument("digest")
@reporting
def why(output: CommandOutput, digest: str) -> None:
    """Show the chain behind DIGEST.

    From the run that trained the model, over the evidence of its optimization, to the verdict
    of every rollout and the aliases. DIGEST may be the start of one, six digits or more.
    """
    from bento.provenance import full_digest, require_digest
    from cli.provenance import chain, sources

    require_digest(digest)
    found = sources()
    document = chain(full_digest(digest, found.digests()), found)
    if output.as_json:
        output.document(document)
    else:
        _show(output, document)


def _show(output: CommandOutput, chain: dict[str, Any]) -> None:
    from cli.rollouts import local_time, verdict_text

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
    output.line(f"variant    {_pairs(model['variant'])}")
    output.line(f"evidence   {_pairs(model['evidence'])}")


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
