"""The tables of the page: variants, latencies, and under what conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from optimize.report.markup import Child, Markup, tag
from optimize.report.numbers import rate, share, signed, significant, size
from optimize.report.record import OptimizeReport, VariantRecord, VariantVerdict
from optimize.variant import Measured

_MARKS = {
    VariantVerdict.CHOSEN: "★",
    VariantVerdict.PASSES: "✓",
    VariantVerdict.REFUSED: "✕",
    VariantVerdict.FAILED: "!",
}
_NONE = "\N{EN DASH}"


@dataclass(frozen=True, slots=True)
class _Column:
    """`cell` gives a variant's number, and under it the range that it may lie in."""

    name: str
    cell: Callable[[Measured], tuple[str, str]]


def variants_table(report: OptimizeReport) -> Markup:
    """One row for each variant; a failed one has no numbers."""
    columns = list(_columns(report))
    head = [tag("th", "Variant", scope="col"), tag("th", "Verdict", scope="col")]
    head += [tag("th", column.name, scope="col", class_="number") for column in columns]
    body = (_row(item, columns) for item in report.variants)
    return _table("Variants", tag("tr", *head), body)


def latency_table(variants: Sequence[tuple[VariantRecord, Measured]]) -> Markup:
    """Median and p95 for each batch size."""
    sizes = sorted({batch.batch for _, found in variants for batch in found.latency})
    head = [tag("th", "Variant", scope="col")]
    head += [tag("th", f"batch {number}", scope="col", class_="number") for number in sizes]
    body = (_latency_row(item, found, sizes) for item, found in variants)
    return _table(
        "Milliseconds for one batch: the median, and under it the 95th percentile",
        tag("tr", *head),
        body,
    )


def conditions_list(report: OptimizeReport) -> Markup:
    """Everything that the numbers depend on."""
    data, place = report.data, report.place
    judged = "".join(f"; {said}" for said in (place.device, place.missing) if said)
    joined = "yes" if report.row_independent else "no: requests are not joined"
    entries = {
        "Source model": report.source.uri,
        "Source digest": report.source.sha256,
        "Data digest": data.sha256,
        "Rows": (
            f"{data.rows:,} in the data; {data.calibration_rows:,} calibrate, "
            f"{data.held_out_rows:,} others judge; "
            f"{'labelled' if data.labelled else 'without labels'}"
        ),
        "Metric": report.metric or "none: judged by parity",
        "Goals": report.goals.words(report.metric),
        "Transform": report.transform or "none",
        "Rows independent": joined,
        "Target": report.target,
        "Judged on": f"{place.provider}{judged}",
        "Processor": f"{report.conditions.processor}, {report.conditions.cores} cores",
        "Threads": f"{report.conditions.threads} for each run",
        "Libraries": report.conditions.libraries.replace(" ", ", ").replace("=", " "),
    }
    children: list[Child] = []
    for name, told in entries.items():
        children += [tag("dt", name), tag("dd", told)]
    return tag("dl", *children, class_="conditions")


def verdict_pill(verdict: VariantVerdict) -> Markup:
    """The verdict as a word with a sign and a colour."""
    return tag("span", f"{_MARKS[verdict]} {verdict}", class_=f"pill {verdict}")


def _table(caption: str, head: Markup, rows: Iterator[Markup]) -> Markup:
    table = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *rows))
    return tag("div", table, class_="wide", role="region", aria_label=caption, tabindex="0")


def _columns(report: OptimizeReport) -> Iterator[_Column]:
    found = [measured for _, measured in report.measured]
    if not found:
        return
    if any(each.score is not None for each in found):
        yield _Column(report.metric or "score", _score)
        yield _Column("drop", _drop)
    if any(each.parity.agreement is not None for each in found):
        yield _Column("agreement", _agreement)
    yield _Column("centred cosine", lambda each: (share(each.parity.centred_cosine), ""))
    if report.metric is None:
        yield _Column("relative L2", lambda each: (significant(each.parity.relative_l2), ""))
    if any(each.latency for each in found):
        yield _Column("1 row, ms", _single)
        yield _Column("p95, ms", _p95)
        yield _Column("rows/s", _throughput)
    yield _Column("size", lambda each: (size(each.size_bytes), ""))


def _row(item: VariantRecord, columns: Sequence[_Column]) -> Markup:
    measured = item.measured
    cells = ((_NONE, "") if measured is None else column.cell(measured) for column in columns)
    return tag(
        "tr",
        tag("th", item.recipe, scope="row"),
        tag("td", verdict_pill(item.verdict)),
        *(_number(*cell) for cell in cells),
        class_=item.verdict.value,
    )


def _number(value: str, within: str) -> Markup:
    return tag("td", value, tag("small", within) if within else None, class_="number")


def _score(each: Measured) -> tuple[str, str]:
    return (_NONE if each.score is None else share(each.score.value)), ""


def _drop(each: Measured) -> tuple[str, str]:
    if each.score is None:
        return _NONE, ""
    drop = each.score.drop
    return signed(drop.value), f"{signed(drop.low)} to {signed(drop.high)}"


def _agreement(each: Measured) -> tuple[str, str]:
    return (_NONE if each.parity.agreement is None else f"{each.parity.agreement:.2%}"), ""


def _single(each: Measured) -> tuple[str, str]:
    if not each.latency:
        return _NONE, ""
    batch = each.latency[0]
    quartiles = f"{significant(batch.q1_ms)} to {significant(batch.q3_ms)}"
    return significant(batch.median_ms), quartiles


def _p95(each: Measured) -> tuple[str, str]:
    return (significant(each.p95_ms) if each.latency else _NONE), ""


def _throughput(each: Measured) -> tuple[str, str]:
    return (rate(each.rows_per_second) if each.latency else _NONE), ""


def _latency_row(item: VariantRecord, found: Measured, sizes: Sequence[int]) -> Markup:
    by_size = {batch.batch: batch for batch in found.latency}
    cells = [tag("th", item.recipe, scope="row")]
    for number in sizes:
        batch = by_size.get(number)
        if batch is None:
            cells.append(_number(_NONE, ""))
        else:
            cells.append(_number(significant(batch.median_ms), significant(batch.p95_ms)))
    return tag("tr", *cells)
