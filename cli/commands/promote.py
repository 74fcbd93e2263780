"""`mlctl promote`: move the traffic to another Bento, step by step, under gates."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mlctl.cli.options import takes
from mlctl.cli.output import CommandOutput, reporting
from mlctl.cli.promote_options import PromoteOptions, SpecOptions
from mlctl.core.errors import ERROR_TABLE, ErrorCode, MlctlError

if TYPE_CHECKING:
    from mlctl.rollout.domain.spec import Revision, RolloutSpec
    from mlctl.rollout.journal.records import JournalEvent

QUIET_SECONDS = 30.0
"""A log shows at least one line in this time, in seconds."""


@click.command()
@click.argument("name")
@click.argument("bento", required=False)
@takes(spec_options=SpecOptions, options=PromoteOptions)
@reporting
def promote(
    output: CommandOutput,
    /,
    name: str,
    bento: str | None,
    spec_options: SpecOptions,
    options: PromoteOptions,
) -> None:
    """Move the traffic of NAME to BENTO, step by step.

    The deployment's daemon does it; this command follows, and Ctrl-C only stops following.
    Exits 0 if promoted, 10 if rolled back, 11 if there was not enough evidence, or
    would not be in time at today's traffic. Rejected if what callers of the live one send or read
    is gone or of another type or shape, or if its proved score is clearly worse on the same data.
    """
    from mlctl.rollout.client.revisions import find_revision

    full, force = options.full, spec_options.force
    spec = _spec(options.file, {**asdict(spec_options), "full": full})
    if options.dry_run:
        _show_spec(output, spec)
        return
    if options.plan:
        _show_plan(output, name, bento, spec)
        return
    if bento is None and not full:
        raise click.UsageError("Missing argument 'BENTO'.")
    if bento is None:
        rollout = _skip_gates(name)
    else:
        rollout = _begin(output, name, find_revision(bento), spec, full=full, force=force)
    output.note(f"Live page: mlctl ui {name}")
    if options.detach:
        _say_detached(output, name, rollout)
        return
    try:
        _follow(output, name, rollout)
    except KeyboardInterrupt:
        raise MlctlError(
            ErrorCode.INTERRUPTED,
            f"stopped following; rollout {rollout} of {name} goes on",
            f"Follow it with `mlctl status {name}`, end it with `mlctl rollback {name}`.",
        ) from None


def _spec(spec_file: Path | None, options: dict[str, Any]) -> RolloutSpec:
    """Return the spec of the options' defaults, then the file, then the options that are given."""
    from mlctl.rollout.client.spec_file import read_spec
    from mlctl.rollout.domain.spec import RolloutSpec

    if spec_file is None:
        return RolloutSpec(**_fields(options))
    context = click.get_current_context()
    overrides = {
        name: value
        for name, value in options.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    return RolloutSpec(**{**_fields(options), **read_spec(spec_file), **_fields(overrides)})


def _fields(options: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the spec that options set."""
    from mlctl.rollout.domain.traffic import slo

    fields = {name: value for name, value in options.items() if value is not None}
    limits = (fields.pop(name, None) for name in ("slo", "max_p50_ms", "max_p99_ms"))
    judged = zip(("max_p50_ms", "max_p99_ms"), slo.limits(*limits), strict=True)
    fields |= {name: limit for name, limit in judged if limit is not None}
    agreement = fields.pop("min_agreement", None)
    if agreement is not None:  # this proof is worth the wait
        fields |= {"max_disagreement": round(1.0 - agreement, 9), "shadow_wait_seconds": None}
    if fields.pop("no_alias", False):
        fields["alias"] = False
    if fields.pop("force", False):
        fields |= {"allow_low_weight_proof": True, "worse": True}
    if fields.pop("full", False):
        fields["worse"] = True
    return fields


def _show_spec(output: CommandOutput, spec: RolloutSpec) -> None:
    from mlctl.rollout.client.spec_file import spec_yaml

    output.result(json.loads(spec.to_json()), spec_yaml(spec).rstrip())


def _show_plan(output: CommandOutput, name: str, bento: str | None, spec: RolloutSpec) -> None:
    from mlctl.cli.plans import plan_document, plan_rows
    from mlctl.rollout.client.revisions import find_revision
    from mlctl.rollout.client.traffic import broken_by, plan_for

    broken = None if bento is None else broken_by(name, find_revision(bento))
    output.note(f"Measuring the traffic of {name} ...")
    planned = plan_for(name, spec)
    if output.as_json:
        output.document({"name": name, **plan_document(planned), "broken": broken})
        raise click.exceptions.Exit(
            0 if planned.ends else ERROR_TABLE[ErrorCode.INSUFFICIENT_TRAFFIC].exit_code
        )
    output.table(("Step", "Weight>", "Requests>", "Minutes>", "Because of"), plan_rows(planned))
    for reason in broken or ():
        output.line(f"callers will miss: {reason}")
    planned.require_end()


def _begin(
    output: CommandOutput,
    name: str,
    revision: Revision,
    spec: RolloutSpec,
    *,
    full: bool,
    force: bool,
) -> int:
    """Start the rollout, unless it cannot end at today's traffic."""
    from mlctl.rollout.client import deployments
    from mlctl.rollout.client.traffic import check_promotion

    if not (full or force):
        output.note(f"Measuring the traffic of {name} ...")
        check_promotion(name, revision, spec)
    rollout = deployments.promote(name, revision, spec)
    if full:
        _skip_gates(name)
    return rollout


def _skip_gates(name: str) -> int:
    from mlctl.rollout.client import deployments
    from mlctl.rollout.domain.operator_commands import OperatorCommand

    event = deployments.send_command(name, OperatorCommand.FULL, "promote --full")
    return event.rollout or 0


def _say_detached(output: CommandOutput, name: str, rollout: int) -> None:
    output.result(
        {"name": name, "rollout": rollout},
        f"rollout {rollout} of {name} is under way: mlctl status {name}",
    )


def _show_events(output: CommandOutput, events: Iterable[JournalEvent]) -> None:
    """Print one line for each event that matters.

    Quiet ticks move the status line; in a log they are lines, one in `QUIET_SECONDS`.
    """
    from mlctl.rollout.client.rendering import event_line, is_quiet

    printed = 0.0
    with output.working() as say:
        for event in events:
            line = event_line(event)
            if line is None or output.as_json:
                continue
            if is_quiet(event) and (output.live or event.at - printed < QUIET_SECONDS):
                say(line)
            else:
                output.line(line)
                printed = event.at


def _follow(output: CommandOutput, name: str, rollout: int) -> None:
    from mlctl.rollout.client import deployments
    from mlctl.rollout.client.rendering import require_promoted, rollout_document

    _show_events(output, deployments.follow(name, rollout))
    ended = next(each for each in deployments.history(name) if each.id == rollout)
    require_promoted(ended)
    output.result(
        {"name": name, **rollout_document(ended)}, f"{name} serves {ended.candidate.bento}"
    )
