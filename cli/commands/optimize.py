"""`mlctl optimize`: every variant measured, the best one registered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bundle.errors import ErrorCode, MlctlError
from bundle.files import check_writable
from cli.optimize_options import optimize_options
from cli.output import CommandOutput, reporting

if TYPE_CHECKING:
    from optimize.choice import Judged
    from optimize.goals import Goals
    from optimize.pipeline import OptimizeResult
    from optimize.plan import Plan
    from optimize.prepare import Options
    from optimize.recipes.base import Recipe

_EPILOG = """\b
Examples:
  mlctl optimize models:/digits@candidate --data eval.npz
  mlctl optimize digits --data eval.parquet --max-accuracy-drop 0.005 --report digits.html
  mlctl optimize encoder --data rows:batches --target tensorrt --min-cosine 0.98
  mlctl optimize digits --data eval.npz --recipes fp32,int8-cpu --dry-run
"""


@dataclass(frozen=True, slots=True)
class _Request:
    model: str
    data: str
    goals: Goals
    options: Options
    recipes: tuple[Recipe, ...]


@click.command(epilog=_EPILOG)
@click.argument("model")
@optimize_options
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
    Some rows of --data calibrate; the variants are judged on others. Finished work is
    cached, so the same command goes on where it was stopped. Exits 5 if nothing passes.
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
        hint = "Finished work is cached: the same command goes on from there."
        raise MlctlError(ErrorCode.INTERRUPTED, "interrupted", hint) from None
    _write(output, report, result.report)
    if output.as_json:
        output.document(_document(result))
        return
    _show(output, result.judged)
    published = result.published
    output.line(f"{published.uri} is {result.chosen.variant.recipe} of {result.source.uri}")
    output.line(f"digest {result.digest}")
    output.note(f"Next: mlctl build {result.source.name} --version {published.version}")


def _check_paths(data: str, report: Path | None) -> None:
    """Find out before minutes of work what could be wrong with the files."""
    from optimize.user_functions import is_function_name

    if not is_function_name(data) and not Path(data).exists():
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"--data: there is no file {data}",
            "Give an .npz or .parquet file, a folder of .parquet files, or a function as "
            "package.module:function.",
        )
    if report is None:
        return
    if not report.absolute().parent.is_dir():
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"--report: there is no folder {report.absolute().parent}"
        )
    check_writable(report)


def _request(model: str, data: str, given: dict[str, Any]) -> _Request:
    from optimize.batching import DEFAULT, read_batching_options
    from optimize.data import RowLimits
    from optimize.goals import Goals, Prefer
    from optimize.prepare import Options
    from optimize.recipes.base import Calibrator, Target
    from optimize.recipes.discovery import select

    target = Target(given["target"])
    names = [name.strip() for each in given["recipes"] for name in each.split(",") if name.strip()]
    goals = Goals(
        max_accuracy_drop=given["max_accuracy_drop"],
        max_p95_ms=given["max_p95_ms"],
        max_size_mb=given["max_size_mb"],
        min_agreement=given["min_agreement"],
        min_centred_cosine=given["min_cosine"],
        prefer=Prefer(given["prefer"]),
    )
    options = Options(
        target=target,
        metric=given["metric"],
        calibrator=Calibrator(given["calibrator"]),
        sampling=RowLimits(given["calibration_rows"], given["rows"]),
        transform=given["transform"],
        batching_options=DEFAULT
        if given["batching"] is None
        else read_batching_options(given["batching"]),
        allow_pickle=given["allow_pickle"],
    )
    return _Request(
        model, data, goals, options, select(names if given["recipes"] else None, target)
    )


def _run(output: CommandOutput, request: _Request) -> OptimizeResult:
    from cli.benches import interruptible
    from cli.optimizing import only_results_on_stdout, watching
    from optimize.pipeline import optimize as run
    from registry.mlflow_catalog import MlflowCatalog

    names = [recipe.name for recipe in request.recipes]
    with interruptible(), only_results_on_stdout(), watching(output, names) as progress:
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
    from cli.optimizing import only_results_on_stdout
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
        "chosen": result.chosen.variant.recipe,
        "variants": _records(result.judged),
    }


def _records(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    from optimize.evidence import variant_record

    return [variant_record(item) for item in judged]


def _show(output: CommandOutput, judged: Sequence[Judged]) -> None:
    from cli.variants import variants_table

    variants_table(output, _records(judged))
