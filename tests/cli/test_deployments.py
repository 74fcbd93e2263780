"""`up`, `scale`, `ps` and `logs` as a user types them, on a deployment of fake Bentos."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mlctl.core.ports import free_ports
from mlctl.rollout.client import deployments
from tests.support.command_line import Mlctl
from tests.support.rollouts import quick_settings, revision
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mlctl]:
    monkeypatch.setenv("MLCTL_HOME", str(tmp_path))
    settings = replace(quick_settings(), replicas=1)
    deployments.up("shop", revision("tiny:aa"), free_ports(1)[0], settings=settings)
    mlctl = Mlctl(tmp_path)
    yield mlctl
    assert mlctl.run("down", "shop").returncode == 0


def test_deployment__scaled_listed_and_logged__shows_its_processes(shop: Mlctl) -> None:
    assert shop.json("scale", "shop", "--replicas", "2")["replicas"] == 2
    table = shop.run("ps", "shop").stdout
    assert re.search(r"shop +blue/1 +\d+ +\d+ +[\d.]+ +\d+ MiB +\d+s +0 +healthy", table), table
    (found,) = shop.json("ps")["deployments"]
    assert [row["role"] for row in found["processes"]] == ["daemon", "proxy", "blue/0", "blue/1"]
    assert all(row["healthy"] and row["rss"] > 0 for row in found["processes"])
    lines = shop.run("logs", "shop", "--role", "blue/1").stdout
    assert "fake bento tiny:aa starts" in lines
    told = shop.run("logs", "shop", "--json").stdout.splitlines()
    assert {json.loads(line)["role"] for line in told} >= {"blue/0", "blue/1", "proxy"}
    missing = shop.run("logs", "shop", "--role", "green")
    assert missing.returncode == 3
    assert "blue/0" in missing.stderr


def test_down__then_up__starts_the_same_bento(shop: Mlctl) -> None:
    assert shop.json("down", "shop")["up"] is False
    refused = shop.run("scale", "shop", "--replicas", "2")
    assert refused.returncode == 3
    assert "mlctl up shop" in refused.stderr
    back = shop.json("up", "shop")
    assert back["bento"] == "tiny:aa"
    assert shop.json("up", "--all") == back


def test_logs__follow__prints_new_lines(shop: Mlctl) -> None:
    command = shop.command("logs", "shop", "--role", "blue", "--follow", "--last", "0")
    out = shop.home / "followed"
    with out.open("w") as file:
        following = subprocess.Popen(command, env=shop.environment, cwd=shop.home, stdout=file)
    try:
        log = shop.home / "deployments" / "shop" / "logs" / "blue-0.log"

        def seen() -> bool:
            with log.open("a") as file:
                file.write("one more line\n")
            return "one more line" in out.read_text()

        wait_until(seen)
    finally:
        os.kill(following.pid, signal.SIGINT)
        following.wait(60)
    assert "fake bento" not in out.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("up",), "NAME"),
        (("up", "shop", "--all"), "--all"),
        (("up", "shop", "--workers", "2"), "--workers needs a BENTO"),
        (("up", "shop", "digits:1", "--min-replicas", "1"), "--max-replicas"),
        (("up", "shop", "digits:1", "--replicas", "0"), "--replicas"),
        (("scale", "shop"), "--replicas"),
        (("scale", "shop", "--replicas", "2", "--max-replicas", "3"), "leave out"),
    ],
)
def test_up__contradictory_options__are_rejected(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    result = Mlctl(tmp_path).run(*arguments)
    assert result.returncode in (2, 3), result.stderr
    assert words in result.stderr
