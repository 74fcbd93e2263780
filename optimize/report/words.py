"""The decision in words: what was chosen, by how much, and how sure that is. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from optimize.report.numbers import milliseconds, rate, share, significant, size, times
from optimize.report.record import OptimizeReport, VariantRecord, VariantVerdict
from optimize.variant import Measured

BASELINE = "fp32"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number that stands out, with what it is and a line of explanation."""

    name: str
    value: str
    note: str


def headline(report: OptimizeReport) -> str:
    """The outcome in one line."""
    chosen = report.chosen
    if chosen is not None:
        return f"{chosen.recipe} was chosen"
    if report.measured:
        return "No variant meets the goals"
    return "Every variant failed"


def sentences(report: OptimizeReport) -> Iterator[str]:
    """Why, in sentences."""
    chosen = report.chosen
    if chosen is None or chosen.measured is None:
        yield from _nothing(report)
        return
    yield f"{_capital(chosen.reason.removeprefix('chosen: '))}."
    yield _accuracy(report, chosen.measured)
    yield from _gains(report, chosen, chosen.measured)
    yield from _reservations(report, chosen.measured)


def figures(report: OptimizeReport) -> Iterator[Figure]:
    """The numbers of the chosen variant that matter most; none if nothing was chosen."""
    chosen = report.chosen
    if chosen is None or chosen.measured is None:
        return
    found, base = chosen.measured, _baseline(report, chosen)
    yield _quality(report, found)
    if found.latency:
        single = found.latency[0].median_ms
        note = "median for a single row"
        if base is not None and base.latency:
            note = f"one row; {BASELINE}: {milliseconds(base.latency[0].median_ms)}"
        yield Figure("Latency", milliseconds(single), note)
        yield Figure(
            "Throughput", f"{rate(found.rows_per_second)} rows/s", "one thread, best batch"
        )
    note = "model file and its data"
    if base is not None:
        note = f"{BASELINE}: {size(base.size_bytes)}"
    yield Figure("Size", size(found.size_bytes), note)


def _nothing(report: OptimizeReport) -> Iterator[str]:
    count = dict.fromkeys(VariantVerdict, 0)
    for item in report.variants:
        count[item.verdict] += 1
    refused, failed = count[VariantVerdict.REFUSED], count[VariantVerdict.FAILED]
    tried = _tried(len(report.variants))
    yield f"{tried}: {refused} refused by a goal, {failed} failed. Nothing was registered."
    if refused:
        yield (
            "The reasons are below, each with the value and its limit: loosen the goal they name, "
            "or give more rows where only the upper bound misses it."
        )


def _tried(count: int) -> str:
    return "1 variant was tried" if count == 1 else f"{count} variants were tried"


def _accuracy(report: OptimizeReport, found: Measured) -> str:
    score = found.score
    rows = f"{found.rows:,} held-out rows"
    if score is None:
        agree = found.parity.agreement
        told = "" if agree is None else f"the same top class on {agree:.2%} of rows, "
        return (
            f"Against the source model on {rows}: {told}centred cosine "
            f"{share(found.parity.centred_cosine)}. The rows have no labels, so nothing is said "
            "about how often either is right."
        )
    return (
        f"Its {report.metric} on {rows} is {share(score.value)}, the source model's is "
        f"{share(score.reference)}. The {score.drop.level:.0%} interval of the drop ends at "
        f"{share(score.drop.high)}; {report.goals.accuracy_drop:g} is allowed."
    )


def _gains(report: OptimizeReport, chosen: VariantRecord, found: Measured) -> Iterator[str]:
    base = _baseline(report, chosen)
    if base is None:
        return
    told = []
    if found.latency and base.latency:
        ratio = base.latency[0].median_ms / found.latency[0].median_ms
        told.append(f"{times(ratio)} as fast for a single row")
    told.append(f"{found.size_bytes / base.size_bytes:.0%} of the size")
    yield f"Against {BASELINE} it is {' and '.join(told)}."


def _reservations(report: OptimizeReport, found: Measured) -> Iterator[str]:
    if not found.latency:
        missing = report.place.missing or f"{report.target} is not on this machine"
        yield f"No latency: {missing.rstrip('.')}. Accuracy was judged on {found.provider}."
    if found.emulated:
        yield "Accuracy was judged on a twin graph with the same arithmetic."
    if not report.row_independent:
        yield "Rows influence each other in this model, so requests are not joined."
    elif not found.row_independent:
        yield (
            "Unlike the source model's, its answers depend on the rows they are joined with "
            f"(relative L2 {significant(found.joined_relative_l2 or 0.0)} next to unusual ones), "
            "so requests are not joined, and it was judged one row at a time."
        )


def _quality(report: OptimizeReport, found: Measured) -> Figure:
    if found.score is not None and report.source_score is not None:
        source = f"source model: {share(report.source_score)}"
        return Figure(_capital(report.metric or "score"), share(found.score.value), source)
    if found.parity.agreement is not None:
        return Figure("Agreement", f"{found.parity.agreement:.2%}", "same top class as the source")
    return Figure("Centred cosine", share(found.parity.centred_cosine), "with the source's answers")


def _baseline(report: OptimizeReport, chosen: VariantRecord) -> Measured | None:
    """fp32's numbers, unless it is what was chosen."""
    if chosen.recipe == BASELINE:
        return None
    return next((found for item, found in report.measured if item.recipe == BASELINE), None)


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
