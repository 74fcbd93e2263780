"""Result documents, and the page and charts made of them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.page import README, bar_chart, update_page
from benchmarks.result import BarChart, BenchmarkResult, RunConditions, measuring

SVG = "{http://www.w3.org/2000/svg}"
PAGE = "# Page\n\n<!-- online -->\nold\n<!-- /online -->\n\nThe end.\n"


def write_result(folder: Path, program: str = "online") -> None:
    conditions = RunConditions(
        started=datetime(2026, 11, 23, tzinfo=UTC),
        commit="0123456789ab",
        machine="a processor, 2 cores, 8 GiB",
        versions={"Python": "3.11.7"},
        load_at_start=0.1,
        load_at_end=0.9,
    )
    result = BenchmarkResult(program=program, conditions=conditions)
    table = result.table("tiny", "server", "responses/CPU-s", "p50 ms")
    table.add("mlctl", 51_551.4, 0.1634)
    result.chart("tiny", "responses per CPU-second", {"mlctl": 51_551.4})
    folder.mkdir()
    (folder / f"{program}.json").write_text(result.model_dump_json())


@pytest.mark.slow
def test_result__measured__records_conditions_and_tables(tmp_path: Path) -> None:
    file = tmp_path / "online.json"
    with measuring("online", file) as result:
        result.table("tiny", "server", "responses/CPU-s").add("mlctl", 51_551.4)
    found = BenchmarkResult.model_validate_json(file.read_text())
    assert found.tables[0].rows == [("mlctl", "51,551")]
    conditions = found.conditions
    assert conditions.commit
    assert "cores" in conditions.machine
    assert "onnxruntime" in conditions.versions
    assert conditions.load_at_end >= 0


def test_page__result_document__replaces_the_text_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(PAGE)
    write_result(tmp_path / "results")
    update_page(tmp_path / "results", page)
    text = page.read_text()
    assert "old" not in text
    assert "| mlctl | 51,551 | 0.163 |" in text
    assert "commit 0123456789ab; a processor, 2 cores, 8 GiB; load 0.1 at the start, 0.9" in text
    assert "![tiny](charts/online-1.svg)" in text
    assert text.endswith("The end.\n")
    assert (tmp_path / "charts" / "online-1.svg").exists()
    update_page(tmp_path / "results", page)
    assert page.read_text() == text


def test_page__no_markers_for_a_program__names_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(PAGE)
    write_result(tmp_path / "results", "unknown")
    with pytest.raises(SystemExit, match="<!-- unknown -->"):
        update_page(tmp_path / "results", page)


@pytest.mark.parametrize(
    "program", ["online", "overload", "optimize", "runners", "rollout", "gpu", "soak"]
)
def test_page__every_program__has_markers(program: str) -> None:
    text = README.read_text()
    assert text.index(f"<!-- {program} -->") < text.index(f"<!-- /{program} -->")


def test_bar_chart__values__bars_are_proportional_and_labels_escaped() -> None:
    chart = BarChart(title="a < b", unit="rows/s", values={"one & only": 100.0, "half": 50.0})
    image = ET.fromstring(bar_chart(chart))
    _, first, second = (float(each.get("width", "0")) for each in image.findall(f"{SVG}rect"))
    assert first == pytest.approx(2 * second)
    assert [each.text for each in image.findall(f"{SVG}text")][1:3] == ["one & only", "100"]
