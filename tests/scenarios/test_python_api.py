"""The script of docs/python.md runs as it stands, as a notebook would."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from mlctl import Client
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.ports import free_ports
from tests.scenarios.conftest import train_digits
from tests.support.command_line import Mlctl
from tests.test_architecture import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.serial]

IMAGE = np.zeros((1, 1, 8, 8), np.float32)


@contextmanager
def traffic(client: Client) -> Iterator[list[int]]:
    """Send requests as soon as the server is ready; yields how many failed."""
    done, failed = threading.Event(), [0]

    def send() -> None:
        ready = False
        while not done.wait(0.01 if ready else 0.2):
            ready = ready or client.ready()
            if not ready:
                continue
            try:
                client.infer("digits", {"image": IMAGE})
            except MlctlError:
                failed[0] += 1

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield failed
    finally:
        done.set()
        thread.join()


def test_python_api__script_of_the_docs__optimizes_builds_and_promotes(tmp_path: Path) -> None:
    mlctl = Mlctl(tmp_path)
    train_digits(mlctl, tmp_path / "eval.npz")
    page = (ROOT / "docs" / "python.md").read_text()
    script = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    (port,) = free_ports(1)
    script = script.replace("8000", str(port)).replace(
        "step_seconds=10, bake_seconds=30",
        ("step_seconds=1, min_requests=10, bake_seconds=1, max_error_rate=0.3, burst_seconds=1"),
    )
    environment = {**mlctl.environment, "PYTHONPATH": str(ROOT)}
    with Client(f"http://127.0.0.1:{port}") as client:
        try:
            with traffic(client) as failed:
                done = subprocess.run(
                    [sys.executable, "-c", script], cwd=tmp_path, env=environment,
                    capture_output=True, text=True, timeout=280, check=False,
                )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert done.stdout.strip().splitlines()[-1].isdecimal()
            assert failed == [0]
            assert client.metadata("digits")["inputs"][0]["name"] == "image"
            with pytest.raises(MlctlError) as unknown:
                client.infer("none", {"image": IMAGE})
            assert unknown.value.code is ErrorCode.MODEL_NOT_FOUND
            with pytest.raises(MlctlError, match="no input 'picture'"):
                client.infer("digits", {"picture": IMAGE})
            (rollout,) = mlctl.json("history", "shop")["rollouts"]
            assert rollout["outcome"] == "promoted"
        finally:
            assert mlctl.run("down", "shop").returncode == 0
