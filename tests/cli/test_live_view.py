"""The live picture: how it is drawn, and on a terminal of its own before a real deployment."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from mlctl.cli.live_view import picture
from mlctl.cli.main import cli
from mlctl.core.ports import free_ports
from mlctl.rollout.client import deployments
from mlctl.rollout.domain.machine.state_machine import RolloutPhase, RolloutProgress
from mlctl.rollout.domain.spec import DeploymentSettings, Outcome, Ports, RolloutSpec, Slot
from mlctl.rollout.journal.records import Deployment, JournalEvent, Rollout
from mlctl.rollout.ui.view import GateRow, GateView, Page, RolloutRecord, deployment_page
from tests.support.command_line import Mlctl
from tests.support.receiver import receiving
from tests.support.rollouts import Load, quick_settings, quick_spec, revision
from tests.support.wait import wait_until

LIVE, CANDIDATE = revision("digits:3f2a9c1b7d"), revision("digits:77ab01c9f2")
BODY = {
    "phase": "shift",
    "weight": 25,
    "step": 2,
    "window": {side: {"requests": 60, "errors": 0} for side in ("candidate", "live")},
    "verdict": {"gate": "data", "value": 33, "limit": 50, "n": 33, "why": "50 are needed"},
    "shadow": {"psi": 0.013},
    "compared": [1.0, 400],
    "e_values": {},
}
GATES = (
    GateRow("client errors vs live", "", GateView(0.9, 0.0), None),
    GateRow("errors vs limit", "", GateView(25.0, 1.0), GateView(9.4e19, 1.0)),
    GateRow("latency vs live", "", GateView(6.5, 0.6), GateView(4.2, 0.5)),
)


def page(candidate: str = CANDIDATE.bento) -> Page:
    """Step 3 of 5, with 33 of 50 requests."""
    spec = RolloutSpec(max_p99_ms=50, min_requests=50)
    deployment = Deployment(
        "shop",
        True,
        Ports(8000, 1),
        DeploymentSettings(),
        Slot.BLUE,
        LIVE,
        None,
        None,
        None,
        1,
        900.0,
    )
    progress = RolloutProgress(
        phase=RolloutPhase.SHIFT, step=2, started=900, since=996, step_requests=33
    )
    to = replace(CANDIDATE, bento=candidate)
    rollout = Rollout(3, "shop", Slot.GREEN, LIVE, to, spec, progress, None, 900.0)
    record = RolloutRecord(rollout)
    record.add([JournalEvent(9, "shop", 3, 999.5, "tick", BODY)])
    found = deployment_page(deployment, [rollout], record, 1000.0)
    assert found.rollout is not None
    return replace(found, rollout=replace(found.rollout, gates=GATES))


def drawn(shown: Page, width: int, *, colours: bool = True) -> str:
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=True, color_system="truecolor", no_color=not colours
    )
    console.print(picture(shown))
    return out.getvalue()


def plain(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).splitlines()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_picture__each_terminal_width__everything_fits(width: int) -> None:
    lines = plain(drawn(page(), width))
    assert max(map(len, lines)) <= min(width, 110)
    text = "\n".join(lines)
    for words in (
        "rollout 3 shift, step 3 of 5",
        "digits:3f2a9c1b7d -> digits:77ab01c9f2",
        "75 %",
        "25 %",
        "6 s left",
        "33 of 50",
        "in 58:20 min",
        "99.75 % of 400 compared requests",
        "rolled back at 20",
        "promoted at 20",
        "client errors vs live",
        "9e+19",
        "50 are needed",
    ):
        assert words in text, words


def test_watch__evidence_at_its_threshold__fills_the_bar() -> None:
    bars: dict[str, int] = {}
    for line in plain(drawn(page(), 80, colours=False)):
        bars.setdefault(line[:21].rstrip(), line.count("━"))  # harm is drawn before proof
    # Without colours the rest of a bar is empty.
    assert bars["client errors vs live"] == 0
    assert 0 < bars["latency vs live"] < bars["errors vs limit"]


def test_picture__colours_off__has_no_colour_codes() -> None:
    assert not re.search(r"\x1b\[(3[0-9]|38|9[0-7])", drawn(page(), 80, colours=False))
    assert re.search(r"\x1b\[(3[0-9]|38|9[0-7])", drawn(page(), 80))


def test_picture__name_with_an_escape_sequence__is_neutralized() -> None:
    assert "\x1b]0;" not in drawn(page("evil:\x1b]0;owned\x07"), 80)


def test_picture__rollout_ended_or_none__says_so() -> None:
    shown = page()
    assert shown.rollout is not None
    rollout = replace(shown.rollout, outcome=Outcome.ROLLED_BACK, state="rolled back")
    text = "\n".join(plain(drawn(replace(shown, rollout=rollout), 80)))
    assert "rolled back" in text
    assert "left" not in text
    assert "no rollout yet" in drawn(replace(shown, rollout=None), 80)


class Terminal:
    """A command on a terminal of its own, 60 columns wide."""

    def __init__(self, mlctl: Mlctl, *arguments: str) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 60, 0, 0))
        self.process = subprocess.Popen(
            mlctl.command(*arguments),
            env={**mlctl.environment, "TERM": "xterm-256color"},
            cwd=mlctl.home,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self._ours = ours
        self.text = ""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                self.text += os.read(self._ours, 65536).decode("utf-8", "replace")
            except OSError:  # the other end is closed
                return

    def end(self) -> int:
        """The exit code, once it has ended."""
        code = self.process.wait(60)
        self._thread.join()
        os.close(self._ours)
        return code


@contextmanager
def up(home: Path, settings: DeploymentSettings, port: int) -> Iterator[Mlctl]:
    mlctl = Mlctl(home)
    deployments.up("shop", revision("tiny:aa"), port, settings=settings)
    try:
        yield mlctl
    finally:
        deployments.down("shop")


def run(*arguments: str) -> Result:
    """A command in this process, without a terminal."""
    return CliRunner().invoke(cli, arguments)


@pytest.mark.slow
def test_watch__active_rollout__is_in_each_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLCTL_HOME", str(tmp_path))
    monkeypatch.setenv("MLCTL_WEBHOOK_SECRET", "hush")
    port, metrics = free_ports(2)
    with receiving() as receiver, receiving() as notified:
        settings = replace(quick_settings(), metrics_port=metrics, webhooks=(receiver.url,))
        with up(tmp_path, settings, port) as mlctl:
            idle = Terminal(mlctl, "status", "shop", "--watch")
            wait_until(lambda: "no rollout yet" in idle.text)
            idle.process.send_signal(signal.SIGINT)
            assert idle.end() == 0
            assert "shop goes on." in idle.text
            refused = run("status", "shop", "--watch")
            assert refused.exit_code == 3
            assert "In a terminal" in refused.stderr
            with Load(port):
                spec = replace(quick_spec(), notifications=(notified.url,))
                deployments.promote("shop", revision("tiny:bb"), spec)
                watching = Terminal(mlctl, "status", "shop", "--watch")
                lines = run("status", "shop", "--watch").stdout
                assert watching.end() == 0
            assert "promoted at 20" in watching.text
            assert "promoted" in watching.text
            assert re.search(r"shift +50 %", lines), lines
            (found,) = json.loads(run("status", "shop", "--json").stdout)["deployments"]
            assert found["metrics"] == f"http://127.0.0.1:{metrics}/metrics"
            assert "secret-part" not in str(found)
            scraped = httpx.get(found["metrics"], trust_env=False).text
            promoted = 'mlctl_rollout_ended_total{deployment="shop",outcome="promoted"} 1.0'
            assert promoted in scraped
        assert receiver.taken[0] == "deployment.up"
        assert receiver.taken[-2:] == ["rollout.promoted", "deployment.down"]
        assert all("webhook-signature" in each.headers for each in receiver.deliveries)
        of_rollouts = [each for each in receiver.taken if each.startswith("rollout.")]
        assert notified.taken == of_rollouts
        assert all("webhook-signature" in each.headers for each in notified.deliveries)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("status", "--watch"), "NAME"),
        (("status", "shop", "--watch", "--json"), "--json"),
        (("up", "shop", "digits:1", "--metrics-port", "0"), "--metrics-port"),
    ],
)
def test_watch__contradictory_options__are_rejected(arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.stderr
    assert words in result.output
