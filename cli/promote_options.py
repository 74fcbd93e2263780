"""The options of `mlctl promote`, in the order in which its help lists them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from mlctl.cli.options import Duration, option

_SHARE = click.FloatRange(0, 1, min_open=True, max_open=True)
_PERCENT = click.IntRange(0, 100)


class _Steps(click.ParamType[tuple[int, ...]]):
    """Percents, separated by commas."""

    name = "steps"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail("give whole percents, such as 1,5,25,50,100", param, ctx)


@dataclass(frozen=True, kw_only=True)
class SpecOptions:
    """Fields of the rollout's spec, by their names or by those that `promote` translates."""

    steps: tuple[int, ...] = option(
        "1,5,25,50,100", _Steps(), help="Percents of the traffic, rising to 100."
    )
    step_seconds: float = option(
        "30s", Duration(), name="--step-time", help="Minimum time per step."
    )
    min_requests: int = option(5, help="Minimum candidate requests per step.")
    bake_seconds: float = option(
        "5m",
        Duration(),
        name="--bake-time",
        help="Minimum time at 100 % before BENTO is promoted.",
    )
    keep_previous_seconds: float = option(
        "1h",
        Duration(),
        name="--keep-previous",
        help="Keep the previous model running for an immediate `mlctl rollback`; 0: stop it.",
    )
    burst_seconds: float = option(
        "5s",
        Duration(),
        name="--burst",
        help="A fault that lasts up to this long counts as one event.",
    )
    deadline_seconds: float = option(
        "1h",
        Duration(),
        name="--deadline",
        help="Time after the candidate is ready until a rollout without proof is inconclusive.",
    )
    on_inconclusive: str = option(
        "rollback",
        click.Choice(["rollback", "pause"]),
        help="After --deadline: roll back, or wait for `mlctl resume` or `mlctl rollback`.",
    )
    sticky: bool = option(help="Keep each client on the same model while the weights allow it.")
    shadow_percent: int = option(
        20,
        _PERCENT,
        help="Percent of the traffic to copy to BENTO before it answers users; 0: none.",
    )
    shadow_seconds: float = option(
        "10s", Duration(), name="--shadow-time", help="Minimum time of copying."
    )
    shadow_requests: int = option(50, click.IntRange(1), help="Minimum number of copies.")
    shadow_wait_seconds: float = option(
        "2m",
        Duration("1ms"),
        name="--shadow-wait",
        help="Maximum time to wait for copies; no limit with --min-agreement.",
    )
    mirror_percent: int = option(0, _PERCENT, help="Percent to copy during the steps.")
    min_agreement: float | None = option(
        type=_SHARE, help="Minimum share of the copies with the same answer."
    )
    max_psi: float = option(0.2, help="Maximum drift of the answers (PSI).")
    min_accuracy: float | None = option(
        type=_SHARE, help="Minimum share of right answers, by the labels of `mlctl feedback`."
    )
    max_label_error: float | None = option(
        help="Numbers are right up to this distance from their label.  [default: 1 % of it]"
    )
    slo: str | None = option(
        metavar="NAME", help="Latency limits of a use case: see docs/gates.md."
    )
    max_p50_ms: float | None = option(help="At most half of the requests may be slower.")
    max_p99_ms: float | None = option(help="At most 1 % of the requests may be slower.")
    max_ttft_ms: float | None = option(
        help="At most 5 % of generated answers may have their first token later."
    )
    max_tpot_ms: float | None = option(
        help="At most 5 % of generated answers may take longer for each further token."
    )
    max_error_rate: float = option(0.01, help="Maximum share of failed requests.")
    alpha: float = option(0.05, help="Chance of rolling back a good model, over the whole rollout.")
    force: bool = option(
        name="--skip-checks",
        help="Start although it may not end in time, its proved score is worse, or it proves "
        "latency at a small share.",
    )
    breaking: bool = option(
        name="--allow-breaking",
        help="Start although BENTO lacks something that callers of the live model use.",
    )
    notifications: tuple[str, ...] = option(
        name="--webhook",
        metavar="URL",
        help="Send the events of this rollout to this URL too; repeatable.",
    )
    no_alias: bool = option(help="Do not write the @champion alias.")


@dataclass(frozen=True, kw_only=True)
class PromoteOptions:
    """What the command does besides describing the rollout."""

    file: Path | None = option(
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        name="-f --file",
        help="Read the rollout from a YAML file; options override it. See docs/rollout.md.",
    )
    dry_run: bool = option(help="Only print the rollout as such a file; nothing starts.")
    plan: bool = option(help="Only compute how much traffic and time it needs.")
    full: bool = option(
        help="Emergency: skip all gates except crash and health checks. Without BENTO: for the "
        "current rollout."
    )
    detach: bool = option(help="Return at once; follow with `mlctl status NAME`.")
