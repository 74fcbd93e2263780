"""The page in headless Chromium: desktop, phone and dark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import uvicorn

from mlctl.core.ports import free_ports
from mlctl.rollout.client import deployments
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.operator_commands import OperatorCommand
from mlctl.rollout.ui.access import PageAccess
from mlctl.rollout.ui.app import ui_app
from tests.support.browser import CHROMIUM, Browser, open_browser
from tests.support.clock import ManualClock
from tests.support.played import Played
from tests.support.wait import wait_until

STATE = "document.getElementById('state').innerText"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]


@pytest.fixture
def access(shop: Played, clock: ManualClock) -> Iterator[PageAccess]:
    """The page of `shop`, served."""
    assert shop
    access = PageAccess(free_ports(1)[0])
    server: uvicorn.Server
    app = ui_app(access, lambda: server.should_exit, clock)
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=access.port, log_level="warning")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started, what="the page to be served")
        yield access
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def browser(access: PageAccess, tmp_path: Path) -> Iterator[Browser]:
    """A browser with a session on the page of `shop`."""
    with open_browser(tmp_path / "profile") as browser:
        browser.look(1100)
        browser.open(f"http://127.0.0.1:{access.port}/deployments/shop#{access.token}")
        wait_until(lambda: browser.evaluate("!!document.getElementById('live')"), what="the page")
        browser.errors.clear()  # before the session its address answers 401
        yield browser


# The first chart's, in pixels, once it has the row to itself.
WIDTH_OF_A_CHART_ALONE = """(() => {
  const [first, ...rest] = document.querySelectorAll('.charts svg');
  rest.forEach(each => each.remove());
  return first.clientWidth;
})()"""


def test_ui_browser__address_with_the_token__opens_a_page_that_is_redrawn(
    shop: Played, browser: Browser
) -> None:
    shop.until(RolloutPhase.SHIFT)
    shop.tick(2)
    wait_until(lambda: "shift" in browser.evaluate(STATE), what="the redraw")
    shop.until(RolloutPhase.DONE, errors=10)
    wait_until(lambda: "rolled back" in browser.evaluate(STATE), what="the end")
    assert browser.evaluate("location.hash") == ""
    assert browser.errors == []


def test_ui_browser__any_width_and_colours__needs_no_sideways_scrolling(
    shop: Played, browser: Browser
) -> None:
    shop.until(RolloutPhase.BAKE)
    wait_until(lambda: "bake" in browser.evaluate(STATE), what="the redraw")
    for width, dark in product((360, 1100, 1600), (False, True)):
        browser.look(width, dark=dark)
        assert browser.evaluate("window.innerWidth") == width
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        assert browser.evaluate(WIDTH_OF_A_CHART_ALONE) <= 544
        background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(17, 20, 24)" if dark else "rgb(251, 251, 250)")
    assert browser.errors == []


def test_ui_browser__roll_back_button__sends_the_command(
    shop: Played, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployments, "ensure_daemon", lambda *_: None)
    shop.until(RolloutPhase.SHIFT)
    button = "document.querySelector('[data-command=rollback]')"
    wait_until(lambda: not browser.evaluate(f"{button}.disabled"), what="the button")
    browser.evaluate(f"setTimeout(() => {button}.click())")
    wait_until(lambda: browser.evaluate("1") and shop.journal.requests(1), what="the command")
    (request,) = shop.journal.requests(1)
    assert request.command is OperatorCommand.ROLLBACK
    shop.until(RolloutPhase.DONE)
    wait_until(lambda: "rolled back" in browser.evaluate(STATE), what="the end")
    assert browser.evaluate(f"{button}.disabled")
    assert browser.errors == []
