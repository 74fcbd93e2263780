"""`mlctl optimize`: every variant measured, the best one registered."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import click

from mlctl.cli.options import OUTPUT_FILE, option, takes
from mlctl.cli.output import CommandOutput, reporting
from mlctl.cli.progress import interruptible, only_results_on_stdout
from mlctl.cli.variants import variants_table
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import check_writable

if TYPE_CHECKING:
    from mlctl.optimize.events import StepEvent
    from mlctl.optimize.inputs.prepare import OptimizeOptions
    from mlctl.optimize.pipeline import OptimizeResult
    from mlctl.optimize.plan import OptimizePlan
    from mlctl.optimize.recipes.base import Recipe
    from mlctl.optimize.variants.choice import Judged
    from mlctl.optimize.variants.goals import Goals
    from mlctl.registry.catalog import Catalog

_EPILOG = """\b
Examples:
  mlctl optimize models:/digits@candidate --data eval.npz
  mlctl optimize digits --data eval.parquet --max-accuracy-drop 0.005 --report digits.html
  mlctl optimize encoder --data rows:batches --device tensorrt --min-cosine 0.98
  mlctl optimize digits --data eval.npz --recipes fp32,int8-static --dry-run
  mlctl optimize llama --data articles.jsonl --max-perplexity-increase 0.03
"""


_POSITIVE = click.FloatRange(0, min_open=True)
_SHARE = click.FloatRange(0, 1)
# Sentences about rejected values that are printed; a wide table can have hundreds.
_MAX_EXCLUDED = 5
_CHAMPION = "champion"


class _ScoreLimit(click.ParamType[float | str]):
    """A number, or the word for the champion's score."""

    name = "float"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | str:
        if value == _CHAMPION:
            return _CHAMPION
        try:
            limit = float(str(value))
        except ValueError:
            limit = math.nan
        if not math.isfinite(limit):
            self.fail(f"{value!r} is neither a number nor {_CHAMPION}.", param, ctx)
        return limit


@dataclass(frozen=True, kw_only=True)
class OptimizeCommand:
    """The options: data, what is tried, the gates, and what is written."""

    data: str = option(
        required=True,
        metavar="PATH|MODULE:FUNCTION",
        help="Rows to calibrate with and to judge on: .npz, .parquet, a folder of .parquet (such "
        "as a server's samples), or a function that yields batches. One array per model input, and "
        "`labels` if you have them. For a language model texts: .txt, or `text` in .jsonl or "
        ".parquet.",
    )
    map: tuple[str, ...] = option(
        metavar="INPUT=COLUMN[,COLUMN...]",
        help="Parquet columns that feed a model input; 'INPUT=GLOB*' takes all matching columns, "
        "labels=COLUMN the labels. Columns that feed nothing are left out.",
    )
    eval_rows: int = option(
        1000, click.IntRange(1), help="Maximum number of rows to judge variants on."
    )
    calibration_rows: int = option(
        256, click.IntRange(1), help="Maximum number of other rows for calibration."
    )
    transform: Path | None = option(
        help="A transform.py, or its folder: preprocess and postprocess, which are served too."
    )
    device: str = option(
        "cpu", click.Choice(["cpu", "cuda", "tensorrt"]), help="What the variants run on."
    )
    recipes: tuple[str, ...] = option(
        metavar="NAME[,NAME...]", help="Variants to try.  [default: all for the device]"
    )
    metric: str | None = option(
        metavar="NAME|MODULE:FUNCTION",
        help="Score with labels: accuracy, top5, f1, auc, log_loss, rmse, mae, r2, ndcg, map, or a "
        "function of outputs and labels.  [default: accuracy with labels]",
    )
    max_accuracy_drop: float | None = option(
        type=click.FloatRange(0),
        help="Maximum drop of the metric against the source model, judged by its upper bound; "
        "needs labels.  [default: 0.01; for errors such as rmse 1 % of the source's error]",
    )
    min_accuracy: float | str | None = option(
        type=_ScoreLimit(),
        metavar="NUMBER|champion",
        help="Minimum of the metric itself, for errors such as rmse the maximum; 'champion' is the "
        "score that the @champion's evidence has for these rows, less the allowed drop.",
    )
    min_agreement: float | None = option(
        type=_SHARE,
        help="Minimum share of rows that agree with the source model, for class scores and "
        "labels.  [default: 0.99 without labels]",
    )
    min_cosine: float | None = option(
        type=_SHARE,
        help="Minimum centred cosine with the source's outputs; also limits relative L2.  "
        "[default: 0.98 without labels]",
    )
    max_perplexity_increase: float | None = option(
        type=click.FloatRange(0),
        help="Maximum increase of a language model's perplexity, as a share of the source model's, "
        "judged by its upper bound.  [default: 0.05]",
    )
    max_p95_ms: float | None = option(type=_POSITIVE, help="Maximum p95 latency of a single row.")
    max_size_mb: float | None = option(
        type=_POSITIVE, help="Maximum size of the model file with its weights."
    )
    prefer: str = option(
        "latency",
        click.Choice(["latency", "throughput", "size"]),
        help="What to choose by among the variants that pass.",
    )
    min_gain: float = option(
        0.1,
        type=_SHARE,
        help="Smallest gain in speed, as a share, for which a variant that costs accuracy is "
        "chosen; noise does not count.",
    )
    batching: Path | None = option(
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE.json",
        help="Batching policy of the server: max_rows or buckets, pad, max_wait_ms, "
        "max_queue_rows, max_queue_ms, max_length, max_body_bytes.  [default: up to 32 rows]",
    )
    allow_pickle: bool = option(
        help="Load a model that is stored as a pickle, which runs its author's code."
    )
    report: Path | None = option(
        type=OUTPUT_FILE,
        metavar="FILE.html",
        help="Write the report to this file, even if no variant passes.",
    )
    max_time: float | None = option(
        type=_POSITIVE,
        metavar="SECONDS",
        help="Leave out the least promising variants, so that all takes no longer. The export, the "
        "baseline and the latencies always run.",
    )
    fresh: bool = option(help="Measure latency again instead of using an earlier run's.")
    dry_run: bool = option(
        help="List what would run, without running it, and estimate how long it takes."
    )


@click.command(epilog=_EPILOG)
@click.argument("model")
@takes(options=OptimizeCommand)
@reporting
def optimize(output: CommandOutput, /, model: str, options: OptimizeCommand) -> None:
    """Optimize a registered MODEL and register the best variant.

    MODEL is models:/NAME@ALIAS, models:/NAME/VERSION, or NAME for its newest version.
    Some rows of --data are used for calibration, and others to judge the variants. Finished work
    is cached, so the same command continues where it was stopped. Exits 5 if no variant passes.
    """
    _check_paths(options.data, options.report)
    if options.dry_run:
        _show_plan(output, model, options)
        return
    from mlctl.optimize.pipeline import NothingPassedError

    output.note(f"Optimizing {model} ...")
    try:
        result = _run(output, model, options)
    except NothingPassedError as error:
        _write(output, options.report, error.report)
        if not output.as_json:
            _show(output, error.judged)
        raise
    except KeyboardInterrupt:
        hint = "Finished work is cached: run the same command again to continue."
        raise MlctlError(ErrorCode.INTERRUPTED, "interrupted", hint) from None
    _write(output, options.report, result.report)
    if output.as_json:
        output.document(_document(result))
        return
    _show(output, result.judged)
    output.note(result.conditions.sentence)
    published = result.published
    output.line(f"{published.uri} is {result.chosen.variant.recipe} of {result.source.uri}")
    output.line(f"digest {result.digest}")
    for sentence in (result.constant, result.splits and result.splits.sentence):
        if sentence:
            output.line(sentence)
    for sentence in result.excluded[:_MAX_EXCLUDED]:
        output.line(sentence)
    if len(result.excluded) > _MAX_EXCLUDED:
        output.line(f"{len(result.excluded) - _MAX_EXCLUDED} more are in the report and --json.")
    output.note(f"Next: mlctl build {result.source.name} --version {published.version}")


def _check_paths(data: str, report: Path | None) -> None:
    """Raise what is wrong with the files before minutes of work."""
    from mlctl.optimize.data.user_functions import is_function_name

    if not is_function_name(data) and not Path(data).exists():
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"--data: file {data} does not exist",
            "Give an .npz or .parquet file, a folder of .parquet files, a function as "
            "package.module:function, or for a language model a .txt or .jsonl file.",
        )
    if report is None:
        return
    if not report.absolute().parent.is_dir():
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"--report: folder {report.absolute().parent} does not exist"
        )
    check_writable(report)


class _Arguments(TypedDict):
    """What `optimize` and `make_plan` take besides the model and the data."""

    catalog: Catalog
    goals: Goals
    options: OptimizeOptions
    recipes: tuple[Recipe, ...] | None


def _arguments(options: OptimizeCommand) -> _Arguments:
    from mlctl.optimize.data import RowLimits
    from mlctl.optimize.inputs.batching import DEFAULT, read_batching_options
    from mlctl.optimize.inputs.prepare import OptimizeOptions
    from mlctl.optimize.recipes.base import Target
    from mlctl.optimize.recipes.discovery import select
    from mlctl.optimize.variants.goals import Goals, Prefer
    from mlctl.registry.mlflow_catalog import MlflowCatalog
    from mlctl.services.tables.input_columns import parse_map

    target, limit = Target(options.device), options.min_accuracy
    names = [name.strip() for each in options.recipes for name in each.split(",") if name.strip()]
    batching = DEFAULT if options.batching is None else read_batching_options(options.batching)
    return {
        "catalog": MlflowCatalog(),
        "goals": Goals(
            max_accuracy_drop=options.max_accuracy_drop,
            max_p95_ms=options.max_p95_ms,
            max_size_mb=options.max_size_mb,
            min_agreement=options.min_agreement,
            min_centred_cosine=options.min_cosine,
            score_limit=None if isinstance(limit, str) else limit,
            max_perplexity_increase=options.max_perplexity_increase,
            prefer=Prefer(options.prefer),
            min_gain=options.min_gain,
        ),
        "options": OptimizeOptions(
            target=target,
            metric=options.metric,
            sampling=RowLimits(options.calibration_rows, options.eval_rows),
            transform=options.transform,
            batching_options=batching,
            allow_pickle=options.allow_pickle,
            columns=parse_map(options.map),
            against_champion=limit == _CHAMPION,
            fresh=options.fresh,
            max_seconds=options.max_time,
        ),
        "recipes": select(names, target) if options.recipes else None,
    }


def _run(output: CommandOutput, model: str, options: OptimizeCommand) -> OptimizeResult:
    from mlctl.optimize.pipeline import optimize as run
    from mlctl.optimize.supervision import this_process

    arguments = _arguments(options)
    with interruptible(), only_results_on_stdout(), output.working(log=True) as show:
        child = this_process()
        progress = child.watched(StepDisplay(output, show))
        return run(model, options.data, **arguments, progress=progress, crashed=child.crashed)


def _show_plan(output: CommandOutput, model: str, options: OptimizeCommand) -> None:
    from mlctl.optimize.plan import make_plan

    arguments = _arguments(options)
    with only_results_on_stdout():
        found = make_plan(model, options.data, **arguments)
    if output.as_json:
        output.document(found.as_dict())
    else:
        _print_plan(output, found)


def _print_plan(output: CommandOutput, plan: OptimizePlan) -> None:
    output.line(
        f"{plan.source} for {plan.target}: {plan.calibration_rows} rows calibrate, "
        f"{plan.held_out_rows} others judge"
    )
    output.line(f"Gates: {plan.gates}")
    if plan.time is not None:
        output.line(f"Time: {plan.time}")
    notes = {True: "searches for layers to keep in float if it misses a gate", False: ""}
    rows = (
        (step.name, "cached" if step.cached else "to do", notes[step.searches])
        for step in plan.steps
    )
    output.table(("Step", "State", ""), rows)
    if plan.missing is not None:
        output.line(f"  {plan.target} is not on this machine: {plan.missing}")
        output.line("  Variants would be judged on the CPU, and their latency not measured.")
    for name, targets in plan.excluded.items():
        output.line(f"  {name} is left out: it is for {targets}")


def _write(output: CommandOutput, report: Path | None, page: str) -> None:
    if report is not None:
        report.write_text(page, encoding="utf-8")
        output.note(f"The report is in {report}")


def _document(result: OptimizeResult) -> dict[str, Any]:
    return {
        "model": result.published.uri,
        "version": result.published.version,
        "digest": result.digest,
        "source": result.source.uri,
        "source_score": result.source_score,
        "splits": None if result.splits is None else result.splits.model_dump(),
        "constant": result.constant,
        "excluded": list(result.excluded),
        "chosen": result.chosen.variant.recipe,
        "variants": _records(result.judged),
    }


def _records(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    from mlctl.optimize.result.evidence import variant_record

    return [variant_record(item) for item in judged]


def _show(output: CommandOutput, judged: Sequence[Judged]) -> None:
    variants_table(output, _records(judged))


class StepDisplay:
    """Shows the step in progress on a status line, and prints a line for each finished one.

    Reasons of variants that failed or are not applicable follow with the result.
    """

    def __init__(self, output: CommandOutput, show: Callable[[str], None]) -> None:
        self._output = output
        self._show = show

    def event(self, event: StepEvent) -> None:
        name = event.recipe or event.stage.value
        if event.status.value == "started":
            self._show(f"{name} ...")
        elif event.status.value == "working":
            self._show(f"{name}: {event.detail} {event.done}/{event.total}")
        elif event.status.value != "not applicable":
            detail = f": {event.detail}" if event.detail and event.status.value != "failed" else ""
            self._output.note(f"  {name} {event.status.value}{detail}")
