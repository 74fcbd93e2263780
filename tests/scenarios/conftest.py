"""One model taken through the chain once, for all scenarios that look at the result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mlctl.core.ports import free_ports
from mlctl.examples.digits.story import replaced_environment
from tests.support.command_line import Mlctl


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
    train_digits(mlctl, data)
    optimized = mlctl.json("optimize", "models:/digits@candidate", "--data", str(data))
    built = mlctl.json("build", "digits")
    port = free_ports(1)[0]
    up = mlctl.json("up", "shop", built["tag"], "--port", str(port))
    try:
        yield Shop(mlctl, port, data, optimized, built, up)
    finally:
        assert mlctl.run("down", "shop").returncode == 0


def train_digits(mlctl: Mlctl, data: Path) -> None:
    """Register a digits model as `candidate`, and write the rows that it was not trained on."""
    from mlctl.examples.digits.train import train

    with replaced_environment(mlctl.environment):
        train("small", "candidate", data)
