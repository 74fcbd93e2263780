"""`mlctl ui` as a user runs it."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from mlctl.core.ports import free_ports
from mlctl.rollout.domain.spec import DeploymentSettings, Ports
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal
from tests.support.command_line import Mlctl
from tests.support.rollouts import revision

pytestmark = pytest.mark.slow


def test_ui__command__serves_on_loopback_until_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLCTL_HOME", str(tmp_path))
    with Journal(paths.journal()) as journal:
        journal.create("shop", Ports(8000, 2), DeploymentSettings(), revision("tiny:aa"))
    (port,) = free_ports(1)
    mlctl = Mlctl(tmp_path)
    command = mlctl.command("ui", "shop", "--port", str(port))
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=mlctl.environment
    ) as process:
        assert process.stdout is not None
        address, _, token = process.stdout.readline().strip().partition("#")
        assert address == f"http://127.0.0.1:{port}/deployments/shop"
        with httpx.Client(transport=httpx.HTTPTransport(retries=20)) as client:
            assert client.get(address).status_code == 401
            client.post(
                f"http://127.0.0.1:{port}/session", headers={"authorization": f"Bearer {token}"}
            )
            assert "tiny:aa" in client.get(address).text
            with client.stream("GET", f"{address}/live") as stream:
                assert next(stream.iter_lines()).startswith("data: ")
                process.send_signal(signal.SIGINT)
                assert process.wait(20) == 0


def test_ui__unknown_deployment__fails_before_it_listens(tmp_path: Path) -> None:
    done = Mlctl(tmp_path).run("ui", "none", "--json")
    assert done.returncode != 0
    assert json.loads(done.stdout)["error"]["code"] == "deployment_not_found"
