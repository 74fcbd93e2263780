"""The command that promotes is only a client: interrupted or killed, the traffic stays safe."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from mlctl.bento.packaging import build_bento
from mlctl.core.ports import free_ports
from tests.support.bundles import make_bundle
from tests.support.command_line import Mlctl
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.slow

# No step can end: there is no traffic, and no data never passes a gate.
ENDLESS = (
    *("--steps", "50,100", "--min-requests", "1000000"),
    *("--skip-checks", "--shadow-percent", "0"),
)


@dataclass(frozen=True, slots=True)
class Tiny:
    """A deployment of one tiny Bento, with another one to promote."""

    mlctl: Mlctl
    port: int
    live: str
    candidate: str

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.mlctl.json("status", "tiny")["deployments"][0]
        return found

    def answers(self) -> bool:
        ready = httpx.get(f"http://127.0.0.1:{self.port}/v2/health/ready", trust_env=False)
        return ready.status_code == 200

    def start_promotion(self) -> subprocess.Popen[str]:
        """A promotion that is under way, with its command still following."""
        process = subprocess.Popen(
            self.mlctl.command("promote", "tiny", self.candidate, *ENDLESS),
            env=self.mlctl.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until(self.exposed, what="the candidate has half of the traffic")
        return process

    def exposed(self) -> bool:
        """Whether the proxy gives the candidate its share: a move is recorded before it holds."""
        return bool(self.status()["weights"] == {"blue": 50, "green": 50})

    def roll_back(self) -> dict[str, Any]:
        taken_back: dict[str, Any] = self.mlctl.json("rollback", "tiny")
        return taken_back


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    home = tmp_path_factory.mktemp("tiny")
    mlctl = Mlctl(home)
    live, candidate = (build(home, scale) for scale in (2.0, 3.0))
    port = free_ports(1)[0]
    mlctl.json("up", "tiny", live, "--port", str(port))
    try:
        yield Tiny(mlctl, port, live, candidate)
    finally:
        assert mlctl.run("down", "tiny").returncode == 0


def build(home: Path, scale: float) -> str:
    labels = {"mlctl.model": "tiny", "mlctl.version": "1", "mlctl.source": "models:/tiny/1"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENTOML_HOME", str(home / "bentoml"))
        return build_bento(make_bundle(home / f"bundle-{scale}", scale=scale), labels).tag


def test_promote__ctrl_c__only_stops_following(tiny: Tiny) -> None:
    process = tiny.start_promotion()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert "goes on" in said
    assert "mlctl status tiny" in said
    assert "mlctl rollback tiny" in said
    assert tiny.exposed()
    assert tiny.answers()
    assert tiny.roll_back()["seconds_since_decision"] < 10
    assert tiny.status()["live"]["bento"] == tiny.live


def test_promote__command_killed__rollout_goes_on(tiny: Tiny) -> None:
    process = tiny.start_promotion()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE_SECONDS)
    assert tiny.exposed()
    assert tiny.answers()
    second = tiny.mlctl.run("promote", "tiny", tiny.candidate)
    assert second.returncode == 8
    assert "under way" in second.stderr
    assert "mlctl rollback" in second.stderr
    tiny.roll_back()
    status = tiny.status()
    assert status["rollout"] is None
    assert status["weights"][status["live"]["slot"]] == 100


def test_rollback__no_rollout_and_no_promotion__not_found(tiny: Tiny) -> None:
    refused = tiny.mlctl.run("rollback", "tiny")
    assert refused.returncode == 3
    assert "no rollout of 'tiny' is under way" in refused.stderr


def test_down__rollout_under_way__everything_ends(tiny: Tiny) -> None:
    process = tiny.start_promotion()
    assert tiny.mlctl.run("down", "tiny").returncode == 0
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 10
    history = tiny.mlctl.json("history", "tiny")["rollouts"]
    assert history[0]["outcome"] == "rolled_back"
    with pytest.raises(httpx.ConnectError):
        tiny.answers()
    again = tiny.mlctl.json("up", "tiny", tiny.live, "--port", str(tiny.port))
    assert again["bento"] == tiny.live
