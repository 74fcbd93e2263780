import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations, pairwise
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from optimize.goals import Goals, Prefer
from optimize.recipes.base import Details
from optimize.report import report_html
from optimize.report.labels import Box, place_labels
from optimize.report.layers import SHOWN
from optimize.report.markup import Markup, tag
from optimize.report.points import front, picture
from optimize.report.record import read_report
from optimize.report.scale import fit
from optimize.variant import Variant
from tests.optimize.builders import failed, variant
from tests.optimize.reports import document, layers

GOOD = (
    variant("fp32", ms=1.0, size=104_000),
    variant("int8-cpu", drop=0.002, bound=0.003, ms=0.4, spread=0.01, size=31_000),
    variant("int4", drop=0.02, bound=0.003, ms=0.9, size=24_000),
)


def detailed(base: Variant, details: Details) -> Variant:
    assert base.measured is not None
    return replace(base, measured=replace(base.measured, details=details))


DOCUMENTS = {
    "labelled": document(GOOD),
    "unlabelled": document([variant("fp32", drop=None), failed("int4")], metric=None),
    "no classes": document([variant("fp32", drop=None, agreement=None)], metric=None),
    "untimed": document(
        [
            variant("fp32", timed=False),
            detailed(variant("int8-trt", timed=False), Details({}, layers(70))),
        ],
        target="tensorrt",
        missing="TensorRT is not installed",
    ),
    "nothing passed": document(GOOD, Goals(max_p95_ms=0.001)),
    "all failed": document([failed("fp32"), failed("int8-cpu")]),
    "one": document(GOOD[:1]),
    "no room": document([variant("fp32", drop=0.0)], Goals(max_accuracy_drop=0.0)),
}


def tree(report: dict[str, Any]) -> ET.Element:
    return ET.fromstring(report_html(report))


def words(report: dict[str, Any]) -> str:
    return " ".join("".join(tree(report).itertext()).split())


def svgs(page: ET.Element) -> Iterator[ET.Element]:
    return page.iter("{http://www.w3.org/2000/svg}svg")


@pytest.mark.parametrize("report", DOCUMENTS.values(), ids=DOCUMENTS)
def test_every_page_is_well_formed_and_reaches_for_nothing(report: dict[str, Any]) -> None:
    page = report_html(report)
    names = {element.tag for element in ET.fromstring(page).iter()}
    assert not names & {"script", "link", "img", "iframe", "object", "form", "a"}
    addresses = set(re.findall(r"\w+://[^\s\"<]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert "url(" not in page
    assert "@import" not in page
    assert not re.search(r"\bnan\b|\binf\b", " ".join(words(report).split()))


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


@pytest.mark.parametrize("report", DOCUMENTS.values(), ids=DOCUMENTS)
def test_every_page_is_html_too(report: dict[str, Any]) -> None:
    parser = _Nesting()
    parser.feed(report_html(report))
    assert (parser.open, parser.wrong) == ([], [])


@pytest.mark.parametrize("report", DOCUMENTS.values(), ids=DOCUMENTS)
def test_pictures_and_tables_are_told_to_those_who_do_not_see_them(report: dict[str, Any]) -> None:
    page = tree(report)
    for picture_ in svgs(page):
        space = "{http://www.w3.org/2000/svg}"
        assert [child.tag for child in picture_[:2]] == [f"{space}title", f"{space}desc"]
        assert all(child.text for child in picture_[:2])
    for table in page.iter("table"):
        assert table.find("caption") is not None
        assert all(cell.get("scope") == "col" for cell in table.findall("thead/tr/th"))
        assert all(row.find("th") is not None for row in table.findall("tbody/tr"))


def test_the_decision_comes_first_in_words() -> None:
    page = tree(DOCUMENTS["labelled"])
    header = " ".join("".join(next(page.iter("header")).itertext()).split())
    assert "int8-cpu was chosen" in header
    assert "accuracy on 100 held-out rows is 0.8980, the source model's is 0.9000" in header
    assert "ends at 0.0050; 0.01 is allowed" in header
    assert "2.5\N{MULTIPLICATION SIGN} as fast for a single row and 30% of the size" in header


def test_refusals_and_failures_are_told_with_their_reasons() -> None:
    told = words(DOCUMENTS["labelled"])
    assert "accuracy drop 0.023 is over the limit 0.01" in told
    nothing = words(DOCUMENTS["nothing passed"])
    assert "No variant meets the goals" in nothing
    assert "3 refused by a goal, 0 failed" in nothing
    failures = words(DOCUMENTS["all failed"])
    assert "Every variant failed" in failures
    assert failures.count("no kernel") == 2


def test_what_was_not_measured_is_said() -> None:
    told = words(DOCUMENTS["untimed"])
    assert "No latency: TensorRT is not installed. Accuracy was judged on cpu." in told
    assert "Latency by batch" not in told
    assert "size in MB" in told
    assert "The rows have no labels" in words(DOCUMENTS["unlabelled"])


def test_names_from_a_registry_are_text() -> None:
    nasty = '<script>alert("x")</script>&amp;\x07'
    report = document([variant(nasty), replace(failed("int8"), failure=nasty)], uri=nasty)
    page = report_html(report)
    assert "<script" not in page
    assert "\x07" not in page
    assert '<script>alert("x")</script>&amp;\ufffd' in words(report)


def test_markup_escapes_what_is_not_markup() -> None:
    assert tag("p", "a<b", None, Markup("<b/>"), class_="x&y", x=1.5, y=2.0) == (
        '<p class="x&amp;y" x="1.5" y="2">a&lt;b<b/></p>'
    )


def test_the_costliest_layers_are_drawn_and_the_rest_is_counted() -> None:
    report = DOCUMENTS["untimed"]
    bars = [each for each in tree(report).iter() if each.get("class", "").startswith("cost ")]
    assert len(bars) == SHOWN
    assert [bar.get("class") for bar in bars[:4]] == ["cost kept"] * 3 + ["cost quantized"]
    lengths = [float(bar.get("width", 0)) for bar in bars]
    assert lengths == sorted(lengths, reverse=True)
    assert f"and {70 - SHOWN} more" in words(report)


def test_the_front_holds_what_no_other_beats() -> None:
    view = picture(read_report(DOCUMENTS["labelled"]))
    assert view is not None
    assert [point.recipe for point in front(view)] == ["int8-cpu", "fp32"]


def test_the_picture_shows_the_gate() -> None:
    view = picture(read_report(DOCUMENTS["labelled"]))
    assert view is not None
    assert view.limit == pytest.approx(0.89)
    assert view.source == 0.9
    for point in view.points:
        held = point.y[0] >= view.limit
        assert held == (point.verdict.value in ("chosen", "passes"))


def test_a_metric_that_falls_is_drawn_with_the_better_side_up() -> None:
    base = variant("int8-cpu", drop=0.004, bound=0.001, ms=0.5)
    assert base.measured is not None
    assert base.measured.score is not None
    score = replace(base.measured.score, value=0.904)
    worse = replace(base, measured=replace(base.measured, score=score))
    view = picture(read_report(document([variant("fp32"), worse], metric="rmse")))
    assert view is not None
    assert view.falling
    assert view.limit == pytest.approx(0.91)
    assert view.points[1].y == pytest.approx((0.903, 0.904, 0.905))
    assert [point.recipe for point in front(view)] == ["int8-cpu", "fp32"]


@pytest.mark.parametrize(
    ("prefer", "title"),
    [
        (Prefer.LATENCY, "ms for a single row"),
        (Prefer.THROUGHPUT, "ms for one row, best batch"),
        (Prefer.SIZE, "size in MB"),
    ],
)
def test_the_cost_is_what_is_preferred(prefer: Prefer, title: str) -> None:
    view = picture(read_report(document(GOOD, Goals(prefer=prefer))))
    assert view is not None
    assert view.x_title == title


def test_one_broken_variant_does_not_squeeze_the_others_into_a_line() -> None:
    broken = variant("int8-cpu", drop=0.8)
    view = picture(read_report(document([variant("fp32"), broken])))
    assert view is not None
    low, high = view.window
    assert high - low < 0.1
    assert "int8-cpu (0.100, off the scale)" in words(document([variant("fp32"), broken]))


def test_labels_do_not_cover_each_other() -> None:
    points = [(100.0 + number % 3, 100.0 + number // 3) for number in range(8)]
    labels = place_labels(points, ["a-recipe"] * 8, Box(0, 0, 400, 300))
    assert not any(a.box.overlaps(b.box) for a, b in combinations(labels, 2))
    assert all(Box(0, 0, 400, 300).holds(label.box) for label in labels)
    assert not labels[0].leader
    assert any(label.leader for label in labels)


@pytest.mark.parametrize(
    "values", [(1.0,), (0.0, 0.0), (0.9, 0.91), (1e-4, 3.0), (5.0, 4000.0), (17.0, 19.0)]
)
def test_a_scale_holds_its_values_and_has_round_ticks(values: tuple[float, ...]) -> None:
    scale = fit(values, 0.0, 100.0, positive=True)
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 12
    assert len({tick.label for tick in ticks}) == len(ticks)
    for tick in ticks:
        assert float(tick.label) == pytest.approx(tick.value)
        assert scale.low <= tick.value <= scale.high
    assert all(before.value < after.value for before, after in pairwise(ticks))
    assert all(0.0 <= scale(value) <= 100.0 for value in values)
