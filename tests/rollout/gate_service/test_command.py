"""The commands: what they refuse, and the service as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from mlctl.cli.main import cli
from mlctl.core.ports import free_ports
from tests.support.wait import wait_until

UP = ("up", "shop", "digits", "--target", "kubernetes", "--route", "web", "--services")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["gate"], "--source"),
        (["gate", "--source", "a=http://h/metrics"], "two sources"),
        (["up", "shop", "digits", "--target", "kubernetes"], "--route and --services"),
        (["up", "shop", "digits", "--route", "web"], "for --target kubernetes"),
        (
            [*UP, "blue=a"],
            "blue=NAME,green=NAME",
        ),
        (
            [*UP, "blue=a,green=a"],
            "both the Service",
        ),
        (
            [*UP, "blue=a,green=b", "--replicas", "2"],
            "have replicas and timeouts",
        ),
    ],
)
def test_gate_command__invalid_options__are_rejected(words: list[str], told: str) -> None:
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 2
    assert told in result.output


@pytest.mark.slow
def test_gate_command__as_a_process__serves_until_sigterm(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    # It may ask itself: what it says of its health is no metrics.
    words = ["gate", "--port", str(port), "--source", f"a={url}/healthz", "--source", f"b={url}/x"]
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlctl.cli.main", *words],
            env={**os.environ, "MLCTL_HOME": str(tmp_path / "home")},
            stdout=out,
            stderr=subprocess.STDOUT,
        )

    def healthy() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return httpx.get(f"{url}/healthz", trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    try:
        wait_until(healthy, what="the gate answers")
        answer = httpx.get(f"{url}/gates/1", params={"blue": "a", "green": "b"}, trust_env=False)
        assert answer.json()["result"] == "inconclusive"
        assert (tmp_path / "home/gate/sessions.db").exists()
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) in (0, -signal.SIGTERM)
