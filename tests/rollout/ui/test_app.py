"""The page of `mlctl ui` over HTTP, on a real journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from starlette.testclient import TestClient

from mlctl.core.errors import ErrorCode
from mlctl.rollout.client import deployments
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.operator_commands import OperatorCommand
from mlctl.rollout.ui.access import CSRF_HEADER, PageAccess
from mlctl.rollout.ui.app import ui_app
from tests.support.clock import ManualClock
from tests.support.played import Played

ACCESS = PageAccess(8600)
PAGE = "/deployments/shop"


def once() -> Callable[[], bool]:
    """Return a `stopping` that ends a stream after its first update."""
    answers = iter((False, True))
    return lambda: next(answers)


def stranger(clock: ManualClock, host: str = "127.0.0.1:8600") -> TestClient:
    return TestClient(ui_app(ACCESS, once(), clock), base_url=f"http://{host}")


@pytest.fixture
def browser(clock: ManualClock) -> Iterator[TestClient]:
    with stranger(clock) as client:
        bearer = {"authorization": f"Bearer {ACCESS.token}"}
        assert client.post("/session", headers=bearer).status_code == 204
        yield client


def test_ui__rollout_in_progress__shows_chain_split_latency_and_gates(
    shop: Played, browser: TestClient
) -> None:
    shop.until(RolloutPhase.SHIFT)
    shop.tick(4)
    text = browser.get(PAGE).text
    for part in (
        "models:/tiny-optimized/1", "tiny:aa", "tiny:bb", "shop, green", "rollout 1: shift",
        "Traffic split", "limit 200", "errors vs limit", "0.00 % of", "(limit 5.00 %)",
        'data-allowed="pause rollback"',
    ):  # fmt: skip
        assert part in text


def test_ui__finished_rollout__is_shown_by_its_number(shop: Played, browser: TestClient) -> None:
    shop.until(RolloutPhase.DONE, errors=10)
    shop.begin("tiny:cc")
    shop.tick()
    assert "tiny:cc" in browser.get(PAGE).text
    old = browser.get(f"{PAGE}?rollout=1").text
    assert "rolled back" in old
    assert 'data-allowed=""' in old
    assert f"{PAGE}/live?rollout=1" in old


def test_ui__stream__sends_the_part_that_changes(shop: Played, browser: TestClient) -> None:
    shop.until(RolloutPhase.SHIFT)
    answer = browser.get(f"{PAGE}/live")
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = answer.text.rstrip("\n").split("\n")
    assert all(line.startswith("data: ") for line in lines)
    assert any("rollout 1: shift" in line for line in lines)


def test_ui__names_in_the_journal__are_escaped(shop: Played, browser: TestClient) -> None:
    shop.until(RolloutPhase.SHIFT)
    shop.journal.request("shop", OperatorCommand.PAUSE, "<script>alert(1)</script>\x07")
    text = browser.get(PAGE).text
    assert "&lt;script&gt;alert(1)" in text
    assert "<script>alert" not in text
    assert "\x07" not in text


@pytest.mark.parametrize("path", ["/", PAGE, f"{PAGE}/live", "/deployments/none"])
def test_ui__without_a_session__shows_nothing(shop: Played, clock: ManualClock, path: str) -> None:
    assert shop
    answer = stranger(clock).get(path)
    assert answer.status_code == 401
    assert "tiny" not in answer.text


def test_ui__wrong_token__opens_no_session(clock: ManualClock) -> None:
    client = stranger(clock)
    for value in ("", "Bearer ", "Bearer wrong", f"Bearer {ACCESS.session}", "Bearer é"):
        headers = {b"authorization": value.encode()}
        answer = client.post("/session", headers=headers)
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers


def test_ui__session_cookie__is_for_this_site_and_no_script(clock: ManualClock) -> None:
    bearer = {"authorization": f"Bearer {ACCESS.token}"}
    cookie = stranger(clock).post("/session", headers=bearer).headers["set-cookie"].lower()
    assert "samesite=strict" in cookie
    assert "httponly" in cookie
    assert ACCESS.token.lower() not in cookie


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8600", "192.168.0.7"])
def test_ui__another_host_name__is_rejected(clock: ManualClock, host: str) -> None:
    assert stranger(clock, host).get("/assets/page.js").status_code == 400


def test_ui__command_without_the_page_s_header__changes_nothing(
    shop: Played, browser: TestClient
) -> None:
    shop.until(RolloutPhase.SHIFT)
    for headers in ({}, {CSRF_HEADER: "wrong"}, {CSRF_HEADER: ACCESS.token}):
        answer = browser.post(f"{PAGE}/rollback?rollout=1", headers=headers)
        assert answer.status_code == 403
    assert shop.journal.requests(1) == ()


def test_ui__command_without_a_session__changes_nothing(shop: Played, clock: ManualClock) -> None:
    shop.until(RolloutPhase.SHIFT)
    answer = stranger(clock).post(f"{PAGE}/rollback?rollout=1", headers={CSRF_HEADER: ACCESS.csrf})
    assert answer.status_code == 401
    assert shop.journal.requests(1) == ()


def test_ui__roll_back__is_the_operator_s_command(
    shop: Played, browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployments, "ensure_daemon", lambda *_: None)
    shop.until(RolloutPhase.SHIFT)
    headers = {CSRF_HEADER: ACCESS.csrf}
    assert browser.post(f"{PAGE}/rollback?rollout=1", headers=headers).status_code == 200
    (request,) = shop.journal.requests(1)
    assert request.command is OperatorCommand.ROLLBACK


def test_ui__pause__waits_for_the_daemon_s_confirmation(
    shop: Played, browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, OperatorCommand]] = []
    monkeypatch.setattr(
        deployments, "send_command", lambda name, command, _why: sent.append((name, command))
    )
    shop.until(RolloutPhase.SHIFT)
    answer = browser.post(f"{PAGE}/pause?rollout=1", headers={CSRF_HEADER: ACCESS.csrf})
    assert answer.status_code == 200
    assert sent == [("shop", OperatorCommand.PAUSE)]


@pytest.mark.parametrize(
    "path", ["resume?rollout=1", "rollback?rollout=7", "rollback", "full?rollout=1"]
)
def test_ui__command_that_the_rollout_cannot_take__is_rejected(
    shop: Played, browser: TestClient, path: str
) -> None:
    shop.until(RolloutPhase.SHIFT)
    answer = browser.post(f"{PAGE}/{path}", headers={CSRF_HEADER: ACCESS.csrf})
    assert answer.json()["error"]["code"] == ErrorCode.NOT_FOUND
    assert shop.journal.requests(1) == ()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/deployments/none", 404),
        (f"{PAGE}?rollout=9", 404),
        (f"{PAGE}?rollout=x", 400),
        (f"{PAGE}/live?rollout=9", 404),
        ("/assets/..%2fapp.py", 404),
    ],
)
def test_ui__unknown_page__says_so(
    shop: Played, browser: TestClient, path: str, status: int
) -> None:
    assert shop
    assert browser.get(path).status_code == status


def test_ui__index__lists_deployments(shop: Played, browser: TestClient) -> None:
    shop.journal.retire("shop")
    assert f'href="{PAGE}"' in browser.get("/").text
    assert "(down)" in browser.get(PAGE).text


def test_ui__every_response__loads_from_no_other_host(shop: Played, browser: TestClient) -> None:
    assert shop
    for path in ("/", PAGE, "/assets/style.css", "/assets/page.css", "/assets/page.js"):
        answer = browser.get(path)
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        text = answer.text.replace("http://www.w3.org/2000/svg", "").replace("127.0.0.1:8000", "")
        assert "https://" not in text
        assert "http://" not in text.replace("http://</p>", "").replace("http://\n", "")
