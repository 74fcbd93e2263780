from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations, pairwise
from xml.etree import ElementTree as ET

import pytest

from mlctl.core.charts.scale import fit
from mlctl.core.charts.shapes import Area
from mlctl.optimize.metrics.parity import Parity
from mlctl.optimize.metrics.scores import METRICS
from mlctl.optimize.proofs.splits import SplitCheck
from mlctl.optimize.recipes.base import Target
from mlctl.optimize.result.evidence import OptimizeReport, report_document
from mlctl.optimize.result.report import report_html
from mlctl.optimize.result.report.charts import Tradeoff, place_labels, tradeoff
from mlctl.optimize.result.report.page import SHOWN_LAYERS, sentences
from mlctl.optimize.variants.goals import Goals, Prefer
from tests.optimize.builders import failed, not_applicable, parity, skipped, variant
from tests.optimize.reports import layers, make_report, with_layers

SVG = "{http://www.w3.org/2000/svg}"

GOOD = (
    variant("fp32", ms=1.0, size=104_000),
    variant("int8-cpu", drop=0.002, bound=0.003, ms=0.4, spread=0.01, size=31_000),
    variant("int4", drop=0.02, bound=0.003, ms=0.9, size=24_000),
)

REPORTS = {
    "labelled": make_report(GOOD),
    "unlabelled": make_report([variant("fp32", drop=None), failed("int4")], metric=None),
    "numbers": make_report([variant("fp32", drop=None, agreement=None)], metric=None),
    "untimed": make_report(
        [
            variant("fp32", timed=False),
            with_layers(variant("int8-trt", timed=False), layers(70)),
        ],
        target=Target.TENSORRT,
        missing="TensorRT is not installed",
    ),
    "nothing passed": make_report(GOOD, Goals(max_p95_ms=0.001)),
    "all failed": make_report([failed("fp32"), failed("int8-cpu")]),
    "none applicable": make_report([not_applicable("int8-static")]),
    "one": make_report(GOOD[:1]),
    "limited": make_report([*GOOD, skipped("int8-dynamic")]),
    "nothing in time": make_report([failed("fp32"), skipped("int8-static")]),
    "no room": make_report([variant("fp32", drop=0.0)], Goals(max_accuracy_drop=0.0)),
    "row by row": make_report([variant("fp32"), variant("int8-cpu", batched=False)]),
}


def tree(report: OptimizeReport) -> ET.Element:
    return ET.fromstring(report_html(report))


def words(report: OptimizeReport) -> str:
    return " ".join("".join(tree(report).itertext()).split())


def svgs(page: ET.Element) -> Iterator[ET.Element]:
    return page.iter(f"{SVG}svg")


def view(report: OptimizeReport) -> Tradeoff:
    found = tradeoff(report)
    assert found is not None
    return found


def test_report__excluded_values__are_named_with_their_reasons() -> None:
    report = make_report(GOOD, excluded=("age: a missing value is rejected (wanted 1, got 2).",))
    assert "age: a missing value is rejected (wanted 1, got 2)." in words(report)
    assert "Not answered" not in words(REPORTS["labelled"])


def test_report__numbers_without_labels__says_what_was_not_judged() -> None:
    text = words(REPORTS["numbers"])
    assert "Of 'y' the distance to the source model's numbers was judged, and not what" in text
    assert "was judged, and not what" not in words(REPORTS["unlabelled"])


def test_report__a_metric_without_labels__says_what_took_their_place() -> None:
    metric = replace(METRICS["accuracy"], against_source=True)
    report = replace(REPORTS["labelled"], metric=metric)
    assert "the source model's answers took their place" in words(report)
    assert "took their place" not in words(REPORTS["labelled"])


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_report_html__any_report__is_well_formed_and_requests_nothing(
    report: OptimizeReport,
) -> None:
    page = report_html(report)
    names = {element.tag for element in ET.fromstring(page).iter()}
    assert not names & {"script", "link", "img", "iframe", "object", "form", "a"}
    addresses = set(re.findall(r"\w+://[^\s\"<]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'; style-src 'unsafe-inline'" in page.replace("&#39;", "'")
    assert "url(" not in page
    assert "@import" not in page
    assert not re.search(r"\bnan\b|\binf\b|\bNone\b", words(report))


class _Nesting(HTMLParser):
    """Follows the page as a browser does, and notes tags that do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        if tag != "meta":
            self.wrong.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open.pop() != tag:
            self.wrong.append(tag)


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_report_html__any_report__is_html_too(report: OptimizeReport) -> None:
    parser = _Nesting()
    parser.feed(report_html(report))
    assert (parser.open, parser.wrong) == ([], [])


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_report_html__charts_and_tables__are_described_for_screen_readers(
    report: OptimizeReport,
) -> None:
    page = tree(report)
    for chart in svgs(page):
        assert [child.tag for child in chart[:2]] == [f"{SVG}title", f"{SVG}desc"]
        assert all(child.text for child in chart[:2])
    for table in page.iter("table"):
        assert table.find("caption") is not None
        assert all(cell.get("scope") == "col" for cell in table.findall("thead/tr/th"))
        assert all(row.find("th") is not None for row in table.findall("tbody/tr"))


def test_report_html__a_choice__is_explained_in_the_header() -> None:
    page = tree(REPORTS["labelled"])
    header = " ".join("".join(next(page.iter("header")).itertext()).split())
    assert "int8-cpu was chosen" in header
    assert "accuracy on 100 held-out rows is 0.8980, the source model's is 0.9000" in header
    assert "ends at 0.0050 (limit 0.01)" in header
    assert "2.5\N{MULTIPLICATION SIGN} as fast for a single row and 30% of the size" in header


def test_report_html__rejected_and_failed_variants__have_their_reasons() -> None:
    assert "accuracy drop 0.023 is over the limit 0.01" in words(REPORTS["labelled"])
    nothing = words(REPORTS["nothing passed"])
    assert "No variant meets the goals" in nothing
    assert "3 rejected by a goal, 0 failed" in nothing
    failures = words(REPORTS["all failed"])
    assert "Every variant failed" in failures
    assert failures.count("no kernel") == 2
    nothing = words(REPORTS["none applicable"])
    assert "No variant is applicable" in nothing
    assert "1 variant was tried: 0 rejected by a goal, 0 failed, 1 not applicable" in nothing


def test_report_html__skipped_variants__are_named() -> None:
    assert "Not tried for lack of time: int8-dynamic." in words(REPORTS["limited"])
    assert "0 rejected by a goal, 1 failed, 1 skipped" in words(REPORTS["nothing in time"])


def test_report_html__no_latency_or_labels__says_so() -> None:
    text = words(REPORTS["untimed"])
    assert "No latency: TensorRT is not installed. Accuracy was judged on cpu." in text
    assert "Latency by batch" not in text
    assert "size in MB" in text
    assert "The rows have no labels" in words(REPORTS["unlabelled"])


def test_report_html__trees__has_the_rows_next_to_a_split() -> None:
    splits = SplitCheck(rows=1000, near=12, differ=3)
    report = make_report([variant("fp32")], splits=splits)
    assert splits.sentence in report_html(report).replace("&#39;", "'")
    assert report_document(report)["splits"] == {"rows": 1000, "near": 12, "differ": 3}


def test_report_html__rows_affect_each_other__says_in_which_model() -> None:
    source = "The rows of a batch affect each other in this model"
    variant_alone = "Unlike the source model's, its answers depend on the other rows"
    of_source = make_report([variant("fp32", batched=False)], row_independent=False)
    of_variant = make_report(
        [variant("fp32", batched=False)], splits=SplitCheck(rows=1000, near=1, differ=0)
    )
    assert source in words(of_source)
    assert variant_alone not in words(of_source)
    assert variant_alone in words(of_variant)
    assert source not in words(of_variant)


def test_report_html__names_from_a_registry__are_escaped() -> None:
    nasty = '<script>alert("x")</script>&amp;\x07'
    report = make_report([variant(nasty), replace(failed("int8"), failure=nasty)], uri=nasty)
    page = report_html(report)
    assert "<script" not in page
    assert "\x07" not in page
    assert '<script>alert("x")</script>&amp;\ufffd' in words(report)


def test_report_html__many_layers__draws_the_costliest_and_counts_the_rest() -> None:
    report = REPORTS["untimed"]
    bars = [each for each in tree(report).iter() if each.get("class", "").startswith("cost ")]
    assert len(bars) == SHOWN_LAYERS
    assert [bar.get("class") for bar in bars[:4]] == ["cost kept"] * 3 + ["cost quantized"]
    widths = [span.get("style", "") for bar in bars for span in bar.iter("span")]
    lengths = [float(re.sub(r"[^\d.]", "", width)) for width in widths]
    assert lengths[0] == 8.0
    assert lengths == sorted(lengths, reverse=True)
    assert f"and {70 - SHOWN_LAYERS} more" in words(report)


def test_pareto_front__labelled_report__has_the_undominated_points() -> None:
    assert [point.recipe for point in view(REPORTS["labelled"]).front()] == ["int8-cpu", "fp32"]


def test_tradeoff__labelled_report__shows_the_gate() -> None:
    found = view(REPORTS["labelled"])
    assert found.limit == pytest.approx(0.89)
    assert found.source == 0.9
    for point in found.points:
        passes = point.quality.low >= found.limit
        assert passes == (point.verdict.value in ("chosen", "passes"))


def test_tradeoff__an_error_metric__draws_lower_as_better_even_if_no_score_moved() -> None:
    assert not view(make_report([variant("fp32")], metric="rmse")).higher_is_better
    base = variant("int8-cpu", drop=0.004, bound=0.001, ms=0.5)
    assert base.measured is not None
    assert base.measured.score is not None
    score = replace(base.measured.score, value=0.904)
    worse = replace(base, measured=replace(base.measured, score=score))
    found = view(make_report([variant("fp32"), worse], metric="rmse"))
    assert found.limit == pytest.approx(0.909)
    quality = found.points[1].quality
    assert (quality.low, quality.value, quality.high) == pytest.approx((0.903, 0.904, 0.905))
    assert [point.recipe for point in found.front()] == ["int8-cpu", "fp32"]


def test_tradeoff__numbers_without_labels__shows_relative_l2() -> None:
    found = view(REPORTS["numbers"])
    assert found.quality == "relative L2 to the source"
    assert found.limit == pytest.approx(0.2)
    assert not found.higher_is_better


@pytest.mark.parametrize(
    ("prefer", "title"),
    [
        (Prefer.LATENCY, "ms for a single row"),
        (Prefer.THROUGHPUT, "ms for one row, best batch"),
        (Prefer.SIZE, "size in MB"),
    ],
)
def test_tradeoff__cost__is_the_preferred_one(prefer: Prefer, title: str) -> None:
    assert view(make_report(GOOD, Goals(prefer=prefer))).cost == title


def test_tradeoff__one_broken_variant__is_drawn_at_the_edge() -> None:
    report = make_report([variant("fp32"), variant("int8-cpu", drop=0.8)])
    low, high = view(report).window()
    assert high - low < 0.1
    assert "int8-cpu (0.100, off the scale)" in words(report)


def test_place_labels__crowded_points__cover_nothing() -> None:
    points = [(100.0 + number % 3, 100.0 + number // 3) for number in range(8)]
    labels = place_labels(points, ["a-recipe"] * 8, Area(0, 0, 400, 300))
    assert not any(a.overlaps(b) for a, b in combinations(labels, 2))
    assert all(label.left > 0 and label.right < 400 for label in labels)
    assert all(label.top > 0 and label.bottom < 300 for label in labels)


@pytest.mark.parametrize(
    "values", [(1.0,), (0.0, 0.0), (0.9, 0.91), (1e-4, 3.0), (5.0, 4000.0), (17.0, 19.0)]
)
def test_scale__any_values__has_room_and_round_ticks(values: tuple[float, ...]) -> None:
    scale = fit(values, 0.0, 100.0, positive=True)
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 12
    assert len({tick.label for tick in ticks}) == len(ticks)
    for tick in ticks:
        assert float(tick.label) == pytest.approx(tick.value)
        assert scale.low <= tick.value <= scale.high
    assert all(before.value < after.value for before, after in pairwise(ticks))
    assert all(0.0 <= scale(value) <= 100.0 for value in values)


def test_report_document__error_metric__has_its_direction_and_no_samples() -> None:
    document = report_document(make_report(GOOD, metric="rmse"))
    assert document["higher_is_better"] is False
    assert set(document["variants"][0]["measured"]["latency"][0]) == {
        "batch", "runs", "median_ms", "q1_ms", "q3_ms", "p95_ms"
    }  # fmt: skip


def test_report__outputs_that_do_not_vary__are_said_once() -> None:
    def with_outputs(**found: bool) -> OptimizeReport:
        item = variant("fp32")
        assert item.measured is not None
        outputs = {name: parity(varies=varies).outputs["y"] for name, varies in found.items()}
        measured = replace(item.measured, parity=Parity(outputs))
        return make_report([replace(item, measured=measured)])

    assert with_outputs(y=True).constant is None
    some = with_outputs(y=True, z=False, w=False)
    assert some.constant == (
        "Constant over the judging rows (1,000): 'z', 'w'. There only the distance to the source "
        "model's answer was judged, not how answers vary."
    )
    assert some.constant in list(sentences(some))
    every = with_outputs(y=False)
    assert "no lossy variant can be proved" in (every.constant or "")
    assert make_report([failed("fp32")]).constant is None
