"""`mlctl optimize`: every variant measured, the best one registered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.output import Output, reporting

if TYPE_CHECKING:
    from optimize.choose import Goals, Judged
    from optimize.events import Event
    from optimize.pipeline import OptimizeResult


class _Reporter:
    """Shows each step as it starts, and each result as it is known."""

    def __init__(self, output: Output, say: Callable[[str], None]) -> None:
        self._output = output
        self._say = say

    def event(self, event: Event) -> None:
        name = event.recipe or event.stage.value
        if event.status.value == "started":
            self._say(f"{name} ...")
            return
        detail = f": {event.detail}" if event.detail else ""
        self._output.note(f"  {name} {event.status.value}{detail}")


@click.command()
@click.argument("model")
@click.option(
    "--data",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="npz file: one array per model input, and `labels` for accuracy.",
)
@click.option(
    "--max-accuracy-drop",
    type=click.FloatRange(0, 1),
    default=0.01,
    show_default=True,
    help="How much less accurate than the source model a variant may be.",
)
@click.option("--max-p95-ms", type=click.FloatRange(0, min_open=True), help="For a single row.")
@click.option("--max-size-mb", type=click.FloatRange(0, min_open=True), help="Of the model file.")
@click.option(
    "--prefer",
    type=click.Choice(["latency", "throughput", "size"]),
    default="latency",
    show_default=True,
    help="What to choose by, among the variants that pass.",
)
@click.option(
    "--allow-pickle",
    is_flag=True,
    help="Load a model that is stored as a pickle, which runs code of its author.",
)
@reporting
def optimize(
    output: Output,
    model: str,
    data: Path,
    max_accuracy_drop: float,
    max_p95_ms: float | None,
    max_size_mb: float | None,
    prefer: str,
    allow_pickle: bool,
) -> None:
    """Optimize a registered MODEL and register the best variant.

    MODEL is models:/NAME@ALIAS, models:/NAME/VERSION, or NAME for its newest version.
    Some rows of --data calibrate INT8; accuracy is measured on the others. Finished work is
    cached, so the same command goes on where it was stopped. Exits 5 if nothing passes.
    """
    from optimize.choose import Goals, Prefer
    from optimize.pipeline import NothingPassedError

    goals = Goals(
        max_accuracy_drop=max_accuracy_drop,
        max_p95_ms=max_p95_ms,
        max_size_mb=max_size_mb,
        prefer=Prefer(prefer),
    )
    output.note(f"Optimizing {model} ...")
    try:
        result = _run(output, model, data, goals, allow_pickle=allow_pickle)
    except NothingPassedError as error:
        if not output.as_json:
            _show(output, error.judged)
        raise
    if output.as_json:
        output.document(_document(result))
        return
    _show(output, result.judged)
    published = result.published
    output.line(f"{published.uri} is {result.chosen.variant.recipe} of {result.source.uri}")
    output.line(f"digest {result.digest}")
    output.note(f"Next: mlctl build {result.source.name}")


def _run(
    output: Output, model: str, data: Path, goals: Goals, *, allow_pickle: bool
) -> OptimizeResult:
    from optimize.pipeline import optimize as run
    from registry.mlflow_catalog import MlflowCatalog

    with output.working() as say:
        return run(
            model,
            data,
            catalog=MlflowCatalog(),
            goals=goals,
            allow_pickle=allow_pickle,
            progress=_Reporter(output, say),
        )


def _document(result: OptimizeResult) -> dict[str, Any]:
    return {
        "model": result.published.uri,
        "version": result.published.version,
        "digest": result.digest,
        "source": result.source.uri,
        "source_accuracy": result.source_accuracy,
        "chosen": result.chosen.variant.recipe,
        "variants": _records(result.judged),
    }


def _records(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    from optimize.evidence import variant_record

    return [variant_record(item) for item in judged]


def _show(output: Output, judged: Sequence[Judged]) -> None:
    from cli.variants import variants_table

    variants_table(output, _records(judged))
