"""The report page in headless Chromium."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from optimize.report import report_html
from tests.optimize.builders import variant
from tests.optimize.reports import make_report
from tests.support.browser import CHROMIUM, open_browser
from tests.support.wait import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]


def test_report_browser__one_variant__has_a_panel_of_the_usual_size(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    panels = "document.querySelectorAll('.panels svg')"
    widths = {}
    with open_browser(tmp_path / "profile") as browser:
        for count in (1, 4):
            names = [f"variant-{number}" for number in range(count)]
            page.write_text(report_html(make_report([variant(name) for name in names])))
            for width in (360, 1100, 1600):
                browser.look(width)
                browser.open(page.as_uri())
                shown = partial(browser.evaluate, f"{panels}.length === {count}")
                wait_until(shown, what="the report")
                widths[count, width] = browser.evaluate(
                    f"{panels}[0].getBoundingClientRect().width"
                )
        assert browser.errors == []
    for width in (360, 1100, 1600):
        assert widths[1, width] == pytest.approx(widths[4, width])
        assert widths[1, width] < 400
