"""The page: the decision first, then the evidence for it, then what it was measured on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from optimize.report.latencies import latencies
from optimize.report.layers import layer_bars, rest
from optimize.report.markup import Child, Markup, tag
from optimize.report.pareto import pareto
from optimize.report.points import picture
from optimize.report.record import OptimizeReport, VariantRecord, read_report
from optimize.report.style import STYLE
from optimize.report.tables import conditions_list, latency_table, variants_table, verdict_pill
from optimize.report.words import figures, headline, sentences

# Should a name ever escape its quotes, the browser still runs and fetches nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def report_html(report: Mapping[str, Any]) -> str:
    """The page for `optimize.evidence.report_document`'s dict: one file, no scripts, no network.

    It is well-formed XML too. ValidationError if `report` is not such a document.
    """
    read = read_report(report)
    title = f"{read.source.uri}: {headline(read)}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", STYLE),
    )
    body = tag("body", _header(read), tag("main", *_sections(read)), _footer(read))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _header(report: OptimizeReport) -> Markup:
    tiles = [
        tag(
            "div",
            tag("dt", figure.name),
            tag("dd", tag("b", figure.value), tag("span", figure.note)),
        )
        for figure in figures(report)
    ]
    return tag(
        "header",
        tag("p", f"{report.source.uri} for {report.target}", class_="over"),
        tag("h1", headline(report), class_="good" if report.chosen else "bad"),
        *(tag("p", sentence, class_="lead") for sentence in sentences(report)),
        tag("dl", *tiles, class_="figures") if tiles else None,
    )


def _sections(report: OptimizeReport) -> Iterator[Markup]:
    view = picture(report)
    if view is not None:
        yield _section("Quality against cost", _pareto_note(report), _figure(pareto(view)))
    yield _section("Variants", None, variants_table(report))
    yield _section("Why", None, tag("div", *map(_reason, report.variants), class_="reasons"))
    yield from _sensitivities(report)
    if report.timed:
        table = latency_table(report.measured)
        note = (
            "Each panel draws one variant's median with its quartiles as a band, the others in "
            "grey; both axes are logarithmic."
        )
        yield _section("Latency by batch", note, _figure(latencies(report.measured)), table)
    yield _section("Measured on", None, conditions_list(report))


def _pareto_note(report: OptimizeReport) -> str:
    if report.source_score is None:
        return (
            "The rows have no labels: quality is how near the answers are to the source model's. "
            "What lies below the dashed limit is refused."
        )
    return (
        "The gate looks at the worse end of the interval, because few rows prove little: a "
        "variant holds the limit if its whole bar is on the good side of the dashed line."
    )


def _sensitivities(report: OptimizeReport) -> Iterator[Markup]:
    for item, found in report.measured:
        layers = found.details.layers
        if not layers:
            continue
        kept = sum(layer.kept_in_float for layer in layers)
        note = (
            f"Each of {len(layers)} layers quantized alone, and how far that moves the answers "
            f"(relative L2 on calibration rows). {_kept(kept)} kept in float."
        )
        more = rest(layers)
        yield _section(
            f"Sensitivity: {item.recipe}",
            note,
            _figure(layer_bars(item.recipe, layers)),
            tag("p", more, class_="hint") if more else None,
        )


def _kept(count: int) -> str:
    return {0: "None was", 1: "One was"}.get(count, f"{count} were")


def _reason(item: VariantRecord) -> Markup:
    found = item.measured
    extra: list[Child] = []
    if found is not None:
        settings = "; ".join(f"{name}: {value}" for name, value in found.details.settings.items())
        if settings:
            extra.append(tag("p", settings, class_="hint"))
        if found.joined_relative_l2 is not None and not found.row_independent:
            extra.append(tag("p", "its rows influence each other: never joined", class_="hint"))
        if found.importer:
            extra.append(tag("p", f"TensorRT's importer: {found.importer}", class_="hint"))
        if found.emulated:
            extra.append(tag("p", f"judged by a twin graph on {found.provider}", class_="hint"))
    return tag(
        "article",
        tag("h3", item.recipe, " ", verdict_pill(item.verdict)),
        tag("p", item.reason),
        *extra,
        class_=item.verdict.value,
    )


def _section(title: str, note: str | None, *content: Child) -> Markup:
    told = None if note is None else tag("p", note, class_="hint")
    return tag("section", tag("h2", title), told, *content)


def _figure(drawing: Markup) -> Markup:
    return tag("figure", drawing)


def _footer(report: OptimizeReport) -> Markup:
    timed = (
        "Latencies are medians on one thread of the machine named above: compare them with each "
        "other, not with another machine's. "
    )
    return tag("footer", timed if report.timed else None, "Written by mlctl optimize.")
