"""One model taken through the chain once, for all scenarios that look at the result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rollout.drivers.local.ports import free_ports
from tests.support.mlctl import Mlctl


@dataclass(frozen=True, slots=True)
class Shop:
    """A running deployment of the digits model, with what the commands said on the way."""

    mlctl: Mlctl
    port: int
    data: Path
    optimized: dict[str, Any]
    built: dict[str, Any]
    up: dict[str, Any]


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    home = tmp_path_factory.mktemp("shop")
    mlctl = Mlctl(home)
    data = home / "eval.npz"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLCTL_HOME", str(home))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        train_in_another_process(mlctl, data)
    optimized = mlctl.json("optimize", "models:/digits@candidate", "--data", str(data))
    built = mlctl.json("build", "digits")
    port = free_ports(1)[0]
    up = mlctl.json("up", "shop", built["tag"], "--port", str(port))
    try:
        yield Shop(mlctl, port, data, optimized, built, up)
    finally:
        assert mlctl.run("down", "shop").returncode == 0


def train_in_another_process(mlctl: Mlctl, data: Path) -> None:
    """Train as the docs say to, so that this process keeps clear of torch and MLflow state."""
    import subprocess
    import sys

    command = [sys.executable, "-m", "examples.digits.train", "--data", str(data)]
    subprocess.run(command, env=mlctl.environment, cwd=mlctl.home, check=True, timeout=180)
