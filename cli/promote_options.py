"""The options of `mlctl promote`, in the order in which its help lists them."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import click

from cli.options import Duration

_SHARE = click.FloatRange(0, 1, min_open=True, max_open=True)
_PERCENT = click.IntRange(0, 100)


def _steps(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter("give whole percents, such as 1,5,25,50,100") from None


def _option(*names: str, **settings: Any) -> Callable[..., Any]:
    """An option whose default, if it has one, is shown."""
    return click.option(*names, show_default="default" in settings, **settings)


_STEPS = (
    _option(
        "--steps",
        default="1,5,25,50,100",
        callback=_steps,
        help="Percents of the traffic, rising to 100.",
    ),
    _option(
        "--step-time",
        "step_seconds",
        type=Duration(),
        default="30s",
        help="Minimum time per step.",
    ),
    _option("--min-requests", type=int, default=5, help="Minimum candidate requests per step."),
    _option(
        "--bake-time",
        "bake_seconds",
        type=Duration(),
        default="5m",
        help="Minimum time at 100 % before BENTO is promoted.",
    ),
    _option(
        "--keep-previous",
        "keep_previous_seconds",
        type=Duration(),
        default="1h",
        help="Keep the previous model running for an immediate `mlctl rollback`; 0: stop it.",
    ),
    _option(
        "--burst",
        "burst_seconds",
        type=Duration(),
        default="5s",
        help="A fault that lasts up to this long counts as one event.",
    ),
    _option(
        "--deadline",
        "deadline_seconds",
        type=Duration(),
        default="1h",
        help="Time after the candidate is ready until a rollout without proof is inconclusive.",
    ),
    _option(
        "--on-inconclusive",
        type=click.Choice(["rollback", "pause"]),
        default="rollback",
        help="After --deadline: roll back, or wait for `mlctl resume` or `mlctl rollback`.",
    ),
    click.option(
        "--sticky",
        is_flag=True,
        help="Keep each client on the same model while the weights allow it.",
    ),
)

_SHADOW = (
    _option(
        "--shadow-percent",
        type=_PERCENT,
        default=20,
        help="Percent of the traffic to copy to BENTO before it answers users; 0: none.",
    ),
    _option(
        "--shadow-time",
        "shadow_seconds",
        type=Duration(),
        default="10s",
        help="Minimum time of copying.",
    ),
    _option(
        "--shadow-requests", type=click.IntRange(1), default=50, help="Minimum number of copies."
    ),
    _option(
        "--shadow-wait",
        "shadow_wait_seconds",
        type=Duration("1ms"),
        default="2m",
        help="Maximum time to wait for copies; no limit with --min-agreement.",
    ),
    _option("--mirror-percent", type=_PERCENT, default=0, help="Percent to copy during the steps."),
    click.option(
        "--min-agreement", type=_SHARE, help="Minimum share of the copies with the same answer."
    ),
    _option("--max-psi", type=float, default=0.2, help="Maximum drift of the answers (PSI)."),
)

_LABELS = (
    click.option(
        "--min-accuracy",
        type=_SHARE,
        help="Minimum share of right answers, by the labels of `mlctl feedback`.",
    ),
    click.option(
        "--max-label-error",
        type=float,
        help="Numbers are right up to this distance from their label.  [default: 1 % of it]",
    ),
)

_LIMITS = (
    click.option("--slo", metavar="NAME", help="Latency limits of a use case: see docs/gates.md."),
    click.option("--max-p50-ms", type=float, help="At most half of the requests may be slower."),
    click.option("--max-p99-ms", type=float, help="At most 1 % of the requests may be slower."),
    click.option(
        "--max-ttft-ms",
        type=float,
        help="At most 5 % of generated answers may have their first token later.",
    ),
    click.option(
        "--max-tpot-ms",
        type=float,
        help="At most 5 % of generated answers may take longer for each further token.",
    ),
    _option(
        "--max-error-rate",
        type=float,
        default=0.01,
        help="Maximum share of failed requests.",
    ),
    _option(
        "--alpha",
        type=float,
        default=0.05,
        help="Chance of rolling back a good model, over the whole rollout.",
    ),
)

_CONDUCT = (
    click.option(
        "-f",
        "--file",
        "spec_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Read the rollout from a YAML file; options override it. See docs/rollout.md.",
    ),
    click.option(
        "--dry-run", is_flag=True, help="Only print the rollout as such a file; nothing starts."
    ),
    click.option(
        "--plan", "only_plan", is_flag=True, help="Only compute how much traffic and time it needs."
    ),
    click.option(
        "--full",
        is_flag=True,
        help="Emergency: skip all gates except crash and health checks. Without BENTO: for the "
        "current rollout.",
    ),
    click.option(
        "--skip-checks",
        "force",
        is_flag=True,
        help="Start although it may not end in time, its proved score is worse, or it proves "
        "latency at a small share.",
    ),
    click.option(
        "--allow-breaking",
        is_flag=True,
        help="Start although BENTO lacks something that callers of the live model use.",
    ),
    click.option("--no-alias", is_flag=True, help="Do not write the @champion alias."),
    click.option("--detach", is_flag=True, help="Return at once; follow with `mlctl status NAME`."),
)


def promote_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add every option of `mlctl promote`."""
    options = (*_STEPS, *_SHADOW, *_LABELS, *_LIMITS, *_CONDUCT)
    return reduce(lambda done, option: option(done), reversed(options), function)
