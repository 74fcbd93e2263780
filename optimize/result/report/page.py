"""The page: the decision first, then the evidence for it, then the conditions of measurement."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlctl.bundle.output_kinds import OutputKind
from mlctl.core.charts.numbers import (
    milliseconds,
    rate,
    score,
    signed,
    significant,
    size,
    times,
)
from mlctl.core.charts.templates import chart_environment
from mlctl.optimize.metrics.parity import Parity
from mlctl.optimize.metrics.scores import Metric
from mlctl.optimize.recipes.base import LayerCost
from mlctl.optimize.result.evidence import OptimizeReport
from mlctl.optimize.result.report.charts import pareto_chart, tradeoff
from mlctl.optimize.variants.choice import BASELINES, Judged, VariantVerdict
from mlctl.optimize.variants.variant import Measured

SHOWN_LAYERS = 20
_TEMPLATE = "report.html.j2"
_NONE = "\N{EN DASH}"
_AGAINST_SOURCE = " The rows have no labels: the source model's answers took their place."

Cell = tuple[str, str]
"""A number, and in small print the range around it."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number that stands out: its name, and a line of explanation."""

    name: str
    value: str
    note: str


@dataclass(frozen=True, slots=True)
class VariantRow:
    """One variant in the tables and in the list of reasons."""

    recipe: str
    verdict: VariantVerdict
    reason: str
    cells: list[Cell]
    remarks: list[str]


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What each layer of a variant costs, the costliest first; `hidden` counts the others.

    `largest` is the largest finite cost, or 1.
    """

    recipe: str
    note: str
    layers: Sequence[LayerCost]
    largest: float
    hidden: str


def report_html(report: OptimizeReport) -> str:
    """Return the page: one file without scripts and requests, which is well-formed XML too."""
    view = tradeoff(report)
    columns = list(_columns(report))
    batches = sorted({batch.batch for _, found in report.measured for batch in found.latency})
    page: str = (
        chart_environment(Path(__file__).parent)
        .get_template(_TEMPLATE)
        .render(
            report=report,
            headline=headline(report),
            sentences=list(sentences(report)),
            figures=list(figures(report)),
            pareto=None if view is None else pareto_chart(view),
            columns=[name for name, _ in columns],
            variants=[_variant_row(item, columns) for item in report.judged],
            sensitivities=list(_sensitivities(report)),
            significant=significant,
            batches=batches if report.timed and not report.generates else [],
            latencies=[
                (item.variant.recipe, _latency(found, batches)) for item, found in report.measured
            ],
            conditions=conditions(report),
        )
    )
    return page


def headline(report: OptimizeReport) -> str:
    """Return the outcome in one line."""
    if report.chosen is not None:
        return f"{report.chosen.variant.recipe} was chosen"
    if report.measured:
        return "No variant meets the goals"
    failed = any(item.verdict is VariantVerdict.FAILED for item in report.judged)
    return "Every variant failed" if failed else "No variant is applicable"


def sentences(report: OptimizeReport) -> Iterator[str]:
    """Yield the reasons for the outcome."""
    chosen = report.chosen
    if chosen is None or chosen.variant.measured is None:
        yield from _no_choice(report)
        return
    found, (name, base) = chosen.variant.measured, _baseline(report)
    yield f"{_capital(chosen.reason.removeprefix('chosen: '))}."
    yield _accuracy(report, found)
    if base is not None and base is not found:
        gains = [f"{found.size_bytes / base.size_bytes:.0%} of the size"]
        if found.latency and base.latency:
            ratio = base.latency[0].median_ms / found.latency[0].median_ms
            gains.insert(0, f"{times(ratio)} as fast for {_unit(found)}")
        yield f"Against {name} it is {' and '.join(gains)}."
    if not found.latency:
        missing = report.device.missing or f"{report.device.target} is not on this machine"
        yield f"No latency: {missing.rstrip('.')}. Accuracy was judged on {found.provider}."
    if not report.row_independent:
        yield "The rows of a batch affect each other in this model, so requests are not batched."
    elif not found.row_independent:
        error = significant(found.contaminated_relative_l2 or 0.0)
        yield (
            "Unlike the source model's, its answers depend on the other rows of the batch "
            f"(relative L2 {error} beside outlier rows), so requests are not batched, and it was "
            "judged one row at a time."
        )
    if any(item.verdict is VariantVerdict.SKIPPED for item in report.judged):
        yield _skipped(report)
    yield from filter(None, (report.constant, report.splits and report.splits.sentence))
    if report.excluded:
        yield (
            "Not answered, because the graph differs from the source model or the source model "
            "rejects it: " + " ".join(report.excluded)
        )


def figures(report: OptimizeReport) -> Iterator[Figure]:
    """Yield the most important numbers of the chosen variant; none if nothing was chosen."""
    chosen = report.chosen
    if chosen is None or chosen.variant.measured is None:
        return
    found, (name, base) = chosen.variant.measured, _baseline(report)
    compared = base is not None and base is not found
    if found.score is not None and report.metric is not None:
        note = f"source model: {score(found.score.reference)}"
        yield Figure(_capital(report.metric.name), score(found.score.value), note)
    elif found.parity.agreement is not None:
        yield Figure(
            "Agreement", f"{found.parity.agreement:.2%}", "rows that agree with the source"
        )
    else:
        note = "from the source model's answers"
        yield Figure("Relative L2", significant(found.parity.relative_l2), note)
    if found.latency:
        note = f"median for {_unit(found)}"
        if base is not None and compared and base.latency:
            note += f"; {name}: {milliseconds(base.latency[0].median_ms)}"
        yield Figure("Latency", milliseconds(found.latency[0].median_ms), note)
        if found.generates:
            note = f"one answer at a time, to a prompt of {found.prompt_tokens} tokens"
            yield Figure("Throughput", f"{rate(found.tokens_per_second or 0)} tokens/s", note)
        else:
            throughput = f"{rate(found.rows_per_second)} rows/s"
            yield Figure("Throughput", throughput, "one thread, best batch")
    note = f"{name}: {size(base.size_bytes)}" if base is not None and compared else ""
    yield Figure("Size", size(found.size_bytes), note or "model file and its data")


def conditions(report: OptimizeReport) -> dict[str, str]:
    """Return everything that the numbers depend on."""
    data, device, machine = report.data, report.device, report.conditions
    labels = "labelled" if data.labelled else "without labels"
    rows = (
        f"{data.rows:,} in the data; {data.calibration_rows:,} calibrate, "
        f"{data.held_out_rows:,} others judge; {labels}"
    )
    if report.generates:
        rows = f"{data.rows:,} texts in the data, of which {data.held_out_rows:,} judge"
    metric = report.metric
    return {
        "Source model": report.source.uri,
        "Source digest": report.source.sha256,
        "Data digest": data.sha256,
        "Rows": rows,
        "Metric": metric.name if metric else "none: judged by the distance to the source model",
        "Goals": report.goals.words(metric),
        "Transform": report.transform or "none",
        "Rows independent": "yes" if report.row_independent else "no: requests are not batched",
        "Target": device.target,
        "Judged on": "; ".join(
            part for part in (device.provider, device.gpu, device.missing) if part
        ),
        "Processor": f"{machine.processor}, {machine.cores} cores",
        "INT8 kernels": "fast"
        if machine.fast_int8
        else "fast for weights of 7 bits, slower exact ones for 8",
        "Threads": f"{machine.threads} per run",
        "Libraries": machine.libraries.replace(" ", ", ").replace("=", " "),
    }


def _no_choice(report: OptimizeReport) -> Iterator[str]:
    verdicts = [item.verdict for item in report.judged]
    rejected, failed = (
        verdicts.count(VariantVerdict.REJECTED),
        verdicts.count(VariantVerdict.FAILED),
    )
    others = verdicts.count(VariantVerdict.NOT_APPLICABLE)
    counts = f"{rejected} rejected by a goal, {failed} failed"
    counts += f", {others} not applicable" if others else ""
    skipped = verdicts.count(VariantVerdict.SKIPPED)
    counts += f", {skipped} skipped" if skipped else ""
    tried = "1 variant was" if len(verdicts) == 1 else f"{len(verdicts)} variants were"
    yield f"{tried} tried: {counts}. Nothing was registered."
    if rejected:
        yield (
            "The reasons are below, each with the value and its limit: loosen that goal, or give "
            "more rows where only the upper bound misses it."
        )


def _accuracy(report: OptimizeReport, found: Measured) -> str:
    rows = f"{found.rows:,} held-out rows"
    if found.score is None or report.metric is None:
        parity = found.parity
        agree = "" if parity.agreement is None else f"{parity.agreement:.2%} of rows agree, "
        if (steps := _step_agreement(parity)) is not None:
            agree += f"{steps:.2%} of single steps, "
        return (
            f"Against the source model on {rows}: {agree}centred cosine "
            f"{score(parity.centred_cosine)}, relative L2 {significant(parity.relative_l2)}. The "
            "rows have no labels, so this does not say how often either is right."
            f"{_not_judged(parity)}"
        )
    drop = found.score.drop
    return (
        f"Its {report.metric.name} on {rows} is {score(found.score.value)}, the source model's is "
        f"{score(found.score.reference)}. The {drop.level:.0%} interval of the "
        f"{_drop_name(report.metric)} ends at "
        f"{score(drop.high)} (limit {report.goals.accuracy_drop:.4g})."
        + (_AGAINST_SOURCE if report.metric.against_source else "")
    )


def _skipped(report: OptimizeReport) -> str:
    names = (
        item.variant.recipe for item in report.judged if item.verdict is VariantVerdict.SKIPPED
    )
    return (
        f"Not tried for lack of time: {', '.join(names)}. The same command without --max-time "
        "continues from its cache."
    )


def _step_agreement(parity: Parity) -> float | None:
    steps = (each.step_agreement for each in parity.outputs.values())
    return min((share for share in steps if share is not None), default=None)


def _not_judged(parity: Parity) -> str:
    """Return the sentence about outputs that are judged by distance only; empty without any."""
    numbers = [name for name, each in parity.outputs.items() if each.kind is OutputKind.NUMBERS]
    if not numbers:
        return ""
    listed = ", ".join(map(repr, numbers))
    return (
        f" Of {listed} the distance to the source model's numbers was judged, and not what is "
        "decided by them, such as boxes found or the nearest neighbour: --metric MODULE:FUNCTION "
        "judges that, without labels too."
    )


def _baseline(report: OptimizeReport) -> tuple[str, Measured | None]:
    """Return the variant that others are compared with, and its name."""
    names = ((item.variant.recipe, measured) for item, measured in report.measured)
    return next((pair for pair in names if pair[0] in BASELINES), (BASELINES[0], None))


def _unit(measured: Measured) -> str:
    """Return what a latency is the time of."""
    if measured.generates and measured.latency:
        return f"an answer of {measured.latency[0].batch} tokens"
    return "a single row"


def _columns(report: OptimizeReport) -> Iterator[tuple[str, Callable[[Measured], Cell]]]:
    """Yield the columns of the table of variants that have a number."""
    found = [measured for _, measured in report.measured]
    if not found:
        return
    if report.metric is not None:
        yield report.metric.name, lambda m: (score(m.score.value) if m.score else _NONE, "")
        yield _drop_name(report.metric), _drop
    if any(each.parity.agreement is not None for each in found):
        yield "agreement", _agreement
    yield "centred cosine", lambda m: (score(m.parity.centred_cosine), "")
    if report.metric is None:
        yield "relative L2", lambda m: (significant(m.parity.relative_l2), "")
    if report.timed and report.generates:
        yield "first token, ms", lambda m: (significant(m.first_token_ms or 0), "")
        yield "answer, ms", _single_row
        yield "tokens/s", lambda m: (rate(m.tokens_per_second or 0), "")
    elif report.timed:
        yield "1 row, ms", _single_row
        yield "p95, ms", lambda m: (significant(m.p95_ms), "")
        yield "rows/s", lambda m: (rate(m.rows_per_second), "")
    yield "size", lambda m: (size(m.size_bytes), "")


def _drop_name(metric: Metric) -> str:
    return "drop" if metric.higher_is_better else "increase"


def _drop(measured: Measured) -> Cell:
    if measured.score is None:
        return _NONE, ""
    drop = measured.score.drop
    return signed(drop.value), f"{signed(drop.low)} to {signed(drop.high)}"


def _agreement(measured: Measured) -> Cell:
    share = measured.parity.agreement
    return (_NONE if share is None else f"{share:.2%}"), ""


def _single_row(measured: Measured) -> Cell:
    batch = measured.latency[0]
    quartiles = f"{significant(batch.q1_ms)} to {significant(batch.q3_ms)}"
    return significant(batch.median_ms), quartiles


def _variant_row(
    item: Judged, columns: Sequence[tuple[str, Callable[[Measured], Cell]]]
) -> VariantRow:
    found = item.variant.measured
    if found is None:
        cells = [(_NONE, "")] * len(columns)
        return VariantRow(item.variant.recipe, item.verdict, item.reason, cells, [])
    remarks = []
    if found.details.settings:
        settings = found.details.settings.items()
        remarks.append("; ".join(f"{name}: {value}" for name, value in settings))
    if found.details.remark:
        remarks.append(found.details.remark)
    if found.contaminated_relative_l2 is not None and not found.row_independent:
        remarks.append("its rows affect each other: never batched")
    if found.importer:
        remarks.append(f"TensorRT's importer: {found.importer}")
    cells = [cell(found) for _, cell in columns]
    return VariantRow(item.variant.recipe, item.verdict, item.reason, cells, remarks)


def _latency(found: Measured, batches: Sequence[int]) -> list[Cell]:
    by_size = {batch.batch: batch for batch in found.latency}
    return [
        (significant(by_size[size_].median_ms), significant(by_size[size_].p95_ms))
        if size_ in by_size
        else (_NONE, "")
        for size_ in batches
    ]


def _sensitivities(report: OptimizeReport) -> Iterator[Sensitivity]:
    for item, found in report.measured:
        layers = found.details.layers
        if not layers:
            continue
        kept = sum(layer.kept_in_float for layer in layers)
        were = {0: "None was", 1: "One was"}.get(kept, f"{kept} were")
        note = (
            f"Each of {len(layers)} layers quantized alone, and how far that moves the answers "
            f"(relative L2 on calibration rows). {were} kept in float."
        )
        rest = layers[SHOWN_LAYERS:]
        hidden = ""
        if rest:
            floats = sum(layer.kept_in_float for layer in rest)
            more = f" ({floats} of them kept in float)" if floats else ""
            limit = significant(rest[0].distance)
            hidden = f"… and {len(rest)} more, each at most {limit}{more}."
        finite = (layer.distance for layer in layers if math.isfinite(layer.distance))
        largest = max(finite, default=0.0) or 1.0
        yield Sensitivity(item.variant.recipe, note, layers[:SHOWN_LAYERS], largest, hidden)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
