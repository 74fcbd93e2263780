"""`mlctl optimize`: every variant measured, the best one registered."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bundle.clock import Clock, SystemClock
from bundle.errors import ErrorCode, MlctlError
from bundle.files import check_writable
from cli.options import OUTPUT_FILE, add_options
from cli.output import CommandOutput, printable, reporting
from cli.progress import clock_time, interruptible, only_results_on_stdout
from cli.variants import NONE, filled, number_cells, number_columns, variants_table

if TYPE_CHECKING:
    from rich.table import Table

    from optimize.choice import Judged
    from optimize.events import ProgressListener, StepEvent
    from optimize.goals import Goals
    from optimize.pipeline import OptimizeResult
    from optimize.plan import Plan
    from optimize.prepare import Options
    from optimize.recipes.base import Recipe
    from optimize.variant import Variant

_EPILOG = """\b
Examples:
  mlctl optimize models:/digits@candidate --data eval.npz
  mlctl optimize digits --data eval.parquet --max-accuracy-drop 0.005 --report digits.html
  mlctl optimize encoder --data rows:batches --device tensorrt --min-cosine 0.98
  mlctl optimize digits --data eval.npz --recipes fp32,int8-static --dry-run
  mlctl optimize llama --data articles.jsonl --max-perplexity-increase 0.03
"""


_STEPS_BEFORE = ("resolve", "export")
_STEPS_AFTER = ("publish",)
_STYLES = {
    "waiting": "dim",
    "cached": "green",
    "finished": "green",
    "measured": "green",
    "failed": "red",
    "not applicable": "dim",
}

_POSITIVE = click.FloatRange(0, min_open=True)
_SHARE = click.FloatRange(0, 1)

_DATA = (
    click.option(
        "--data",
        required=True,
        metavar="PATH|MODULE:FUNCTION",
        help="Rows to calibrate with and to judge on: .npz, .parquet, a folder of .parquet (such "
        "as a server's samples), or a function that yields batches. One array per model input, and "
        "`labels` if you have them. For a language model texts: .txt, or `text` in .jsonl or "
        ".parquet.",
    ),
    click.option(
        "--map",
        "mapped",
        multiple=True,
        metavar="INPUT=COLUMN[,COLUMN...]",
        help="Parquet columns that feed a model input; 'INPUT=GLOB*' takes all matching columns, "
        "labels=COLUMN the labels. Columns that feed nothing are left out.",
    ),
    click.option(
        "--eval-rows",
        type=click.IntRange(1),
        default=1000,
        show_default=True,
        help="Maximum number of rows to judge variants on.",
    ),
    click.option(
        "--calibration-rows",
        type=click.IntRange(1),
        default=256,
        show_default=True,
        help="Maximum number of other rows for calibration.",
    ),
    click.option(
        "--transform",
        type=click.Path(path_type=Path),
        help="A transform.py, or its folder: preprocess and postprocess, which are served too.",
    ),
)

_WORK = (
    click.option(
        "--device",
        type=click.Choice(["cpu", "cuda", "tensorrt"]),
        default="cpu",
        show_default=True,
        help="What the variants run on.",
    ),
    click.option(
        "--recipes",
        multiple=True,
        metavar="NAME[,NAME...]",
        help="Variants to try.  [default: all for the device]",
    ),
)

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


_GATES = (
    click.option(
        "--metric",
        metavar="NAME|MODULE:FUNCTION",
        help="Score with labels: accuracy, top5, f1, auc, log_loss, rmse, mae, r2, ndcg, map, or a "
        "function of outputs and labels.  [default: accuracy with labels]",
    ),
    click.option(
        "--max-accuracy-drop",
        type=click.FloatRange(0),
        help="Maximum drop of the metric against the source model, judged by its upper bound; "
        "needs labels.  [default: 0.01; for errors such as rmse 1 % of the source's error]",
    ),
    click.option(
        "--min-accuracy",
        type=_ScoreLimit(),
        metavar="NUMBER|champion",
        help="Minimum of the metric itself, for errors such as rmse the maximum; 'champion' is the "
        "score that the @champion's evidence has for these rows, less the allowed drop.",
    ),
    click.option(
        "--min-agreement",
        type=_SHARE,
        help="Minimum share of rows that agree with the source model, for class scores and "
        "labels.  [default: 0.99 without labels]",
    ),
    click.option(
        "--min-cosine",
        type=_SHARE,
        help="Minimum centred cosine with the source's outputs; also limits relative L2.  "
        "[default: 0.98 without labels]",
    ),
    click.option(
        "--max-perplexity-increase",
        type=click.FloatRange(0),
        help="Maximum increase of a language model's perplexity, as a share of the source model's, "
        "judged by its upper bound.  [default: 0.05]",
    ),
    click.option("--max-p95-ms", type=_POSITIVE, help="Maximum p95 latency of a single row."),
    click.option(
        "--max-size-mb", type=_POSITIVE, help="Maximum size of the model file with its weights."
    ),
    click.option(
        "--prefer",
        type=click.Choice(["latency", "throughput", "size"]),
        default="latency",
        show_default=True,
        help="What to choose by among the variants that pass.",
    ),
)

_REST = (
    click.option(
        "--batching",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE.json",
        help="Batching policy of the server: max_rows or buckets, pad, max_wait_ms, "
        "max_queue_rows, max_queue_ms.  [default: up to 32 rows]",
    ),
    click.option(
        "--allow-pickle",
        is_flag=True,
        help="Load a model that is stored as a pickle, which runs its author's code.",
    ),
    click.option(
        "--report",
        type=OUTPUT_FILE,
        metavar="FILE.html",
        help="Write the report to this file, even if no variant passes.",
    ),
    click.option(
        "--fresh", is_flag=True, help="Measure latency again instead of using an earlier run's."
    ),
    click.option("--dry-run", is_flag=True, help="List what would run, without running it."),
)


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    return add_options((*_DATA, *_WORK, *_GATES, *_REST), command)


@dataclass(frozen=True, slots=True)
class _Request:
    model: str
    data: str
    goals: Goals
    options: Options
    recipes: tuple[Recipe, ...] | None


@click.command(epilog=_EPILOG)
@click.argument("model")
@_options
@reporting
def optimize(
    output: CommandOutput,
    /,
    model: str,
    data: str,
    report: Path | None,
    dry_run: bool,
    **given: Any,
) -> None:
    """Optimize a registered MODEL and register the best variant.

    MODEL is models:/NAME@ALIAS, models:/NAME/VERSION, or NAME for its newest version.
    Some rows of --data are used for calibration, and others to judge the variants. Finished work
    is cached, so the same command continues where it was stopped. Exits 5 if no variant passes.
    """
    _check_paths(data, report)
    request = _request(model, data, given)
    if dry_run:
        _show_plan(output, request)
        return
    from optimize.pipeline import NothingPassedError

    output.note(f"Optimizing {model} ...")
    try:
        result = _run(output, request)
    except NothingPassedError as error:
        _write(output, report, error.report)
        if not output.as_json:
            _show(output, error.judged)
        raise
    except KeyboardInterrupt:
        hint = "Finished work is cached: run the same command again to continue."
        raise MlctlError(ErrorCode.INTERRUPTED, "interrupted", hint) from None
    _write(output, report, result.report)
    if output.as_json:
        output.document(_document(result))
        return
    _show(output, result.judged)
    output.note(result.conditions.sentence)
    published = result.published
    output.line(f"{published.uri} is {result.chosen.variant.recipe} of {result.source.uri}")
    output.line(f"digest {result.digest}")
    if result.splits is not None:
        output.line(result.splits.sentence)
    output.note(f"Next: mlctl build {result.source.name} --version {published.version}")


def _check_paths(data: str, report: Path | None) -> None:
    """Raise what is wrong with the files before minutes of work."""
    from optimize.user_functions import is_function_name

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


def _request(model: str, data: str, given: dict[str, Any]) -> _Request:
    from optimize.batching import DEFAULT, read_batching_options
    from optimize.data import RowLimits
    from optimize.goals import Goals, Prefer
    from optimize.prepare import Options
    from optimize.recipes.base import Target
    from optimize.recipes.discovery import select
    from services.runtime.tabular.input_columns import parse_map

    target = Target(given["device"])
    names = [name.strip() for each in given["recipes"] for name in each.split(",") if name.strip()]
    goals = Goals(
        max_accuracy_drop=given["max_accuracy_drop"],
        max_p95_ms=given["max_p95_ms"],
        max_size_mb=given["max_size_mb"],
        min_agreement=given["min_agreement"],
        min_centred_cosine=given["min_cosine"],
        score_limit=None if given["min_accuracy"] == _CHAMPION else given["min_accuracy"],
        max_perplexity_increase=given["max_perplexity_increase"],
        prefer=Prefer(given["prefer"]),
    )
    options = Options(
        target=target,
        metric=given["metric"],
        sampling=RowLimits(given["calibration_rows"], given["eval_rows"]),
        transform=given["transform"],
        batching_options=DEFAULT
        if given["batching"] is None
        else read_batching_options(given["batching"]),
        allow_pickle=given["allow_pickle"],
        columns=parse_map(given["mapped"]),
        against_champion=given["min_accuracy"] == _CHAMPION,
        fresh=given["fresh"],
    )
    recipes = select(names, target) if given["recipes"] else None
    return _Request(model, data, goals, options, recipes)


def _run(output: CommandOutput, request: _Request) -> OptimizeResult:
    from optimize.pipeline import optimize as run
    from registry.mlflow_catalog import MlflowCatalog

    with interruptible(), only_results_on_stdout(), watching(output) as progress:
        return run(
            request.model,
            request.data,
            catalog=MlflowCatalog(),
            goals=request.goals,
            options=request.options,
            recipes=request.recipes,
            progress=progress,
        )


def _show_plan(output: CommandOutput, request: _Request) -> None:
    from optimize.plan import make_plan
    from registry.mlflow_catalog import MlflowCatalog

    with only_results_on_stdout():
        found = make_plan(
            request.model,
            request.data,
            catalog=MlflowCatalog(),
            goals=request.goals,
            options=request.options,
            recipes=request.recipes,
        )
    if output.as_json:
        output.document(found.as_dict())
    else:
        _print_plan(output, found)


def _print_plan(output: CommandOutput, plan: Plan) -> None:
    output.line(
        f"{plan.source} for {plan.target}: {plan.calibration_rows} rows calibrate, "
        f"{plan.held_out_rows} others judge"
    )
    output.line(f"Gates: {plan.gates}")
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
        "chosen": result.chosen.variant.recipe,
        "variants": _records(result.judged),
    }


def _records(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    from optimize.evidence import variant_record

    return [variant_record(item) for item in judged]


def _show(output: CommandOutput, judged: Sequence[Judged]) -> None:
    variants_table(output, _records(judged))


@dataclass(frozen=True, slots=True)
class Piecework:
    """Work in countable pieces: its start, and how many were done then and are done now."""

    what: str
    since: float
    first: int
    done: int
    total: int

    def left(self, now: float) -> float | None:
        """Return the estimated seconds left; None before the first piece is done."""
        completed = self.done - self.first
        if completed <= 0:
            return None
        return (now - self.since) / completed * (self.total - self.done)


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step or recipe of the table; `started` and `ended` in seconds of the clock."""

    name: str
    state: str = "waiting"
    started: float | None = None
    ended: float | None = None
    work: Piecework | None = None
    variant: Variant | None = None


class Board:
    """The progress table: events change it, and it can be drawn at any time."""

    def __init__(self, clock: Clock) -> None:
        self._rows = {name: StepRow(name) for name in (*_STEPS_BEFORE, *_STEPS_AFTER)}
        self._clock = clock

    def event(self, event: StepEvent) -> None:
        name = event.recipe or event.stage.value
        if event.recipes:
            names = (*_STEPS_BEFORE, *event.recipes, *_STEPS_AFTER)
            self._rows = {each: self._rows.get(each, StepRow(each)) for each in names}
        row = self._rows.get(name)
        if row is not None:
            self._rows[name] = self._changed(row, event)

    def cells(self) -> list[list[str]]:
        """Return the cells of every row: name, state, numbers, elapsed time."""
        now = self._clock.monotonic()
        return [
            [row.name, _state(row, now), *_numbers(row), _elapsed(row, now)]
            for row in self._rows.values()
        ]

    def __rich__(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 2, 0, 0))
        columns, rows = filled(("Step", "State", *number_columns(()), "Time>"), self.cells())
        for name in columns:
            table.add_column(
                name.rstrip(">"), justify="right" if name.endswith(">") else "left", no_wrap=True
            )
        for cells in rows:
            style = _STYLES.get(cells[1], "")
            texts = ("" if cell == NONE else printable(cell) for cell in cells)
            table.add_row(*map(Text, texts), style=style)
        return table

    def _changed(self, row: StepRow, event: StepEvent) -> StepRow:
        now = self._clock.monotonic()
        match event.status.value:
            case "started":
                return replace(row, state="building" if event.recipe else "working", started=now)
            case "working":
                return replace(row, work=self._piecework(row.work, event, now))
            case status:
                state = "measured" if status == "finished" and event.variant else status
                return replace(row, state=state, ended=now, work=None, variant=event.variant)

    def _piecework(self, before: Piecework | None, event: StepEvent, now: float) -> Piecework:
        if before is None or (before.what, before.total) != (event.detail, event.total):
            return Piecework(event.detail, now, event.done, event.done, event.total)
        return replace(before, done=event.done)


class Lines:
    """Prints one line per finished step."""

    def __init__(self, output: CommandOutput) -> None:
        self._output = output

    def event(self, event: StepEvent) -> None:
        if event.status.value in ("started", "working"):
            return
        detail = f": {event.detail}" if event.detail else ""
        self._output.note(f"  {event.recipe or event.stage.value} {event.status.value}{detail}")


@contextlib.contextmanager
def watching(output: CommandOutput) -> Iterator[ProgressListener]:
    """Yield a listener: a live table on a terminal, plain lines elsewhere."""
    if not output.live:
        yield Lines(output)
        return
    from rich.console import Console
    from rich.live import Live

    board = Board(SystemClock())
    # Libraries are silenced by replacing sys.stderr, which must not affect this table.
    console = Console(file=sys.stderr, highlight=False)
    with Live(board, console=console, refresh_per_second=4, transient=True):
        yield board


def _state(row: StepRow, now: float) -> str:
    if row.work is None:
        return row.state
    left = row.work.left(now)
    remaining = "" if left is None else f", {clock_time(left)} left"
    return f"{row.work.what} {row.work.done}/{row.work.total}{remaining}"


def _numbers(row: StepRow) -> tuple[str, ...]:
    measured = None if row.variant is None else row.variant.measured
    return number_cells(None if measured is None else measured.record(), ())


def _elapsed(row: StepRow, now: float) -> str:
    if row.started is None:
        return NONE
    return clock_time((now if row.ended is None else row.ended) - row.started)
