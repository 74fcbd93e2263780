"""A split on a real deployment: Envoy, a daemon, fake Bentos, live load."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.ports import free_ports
from mlctl.rollout.client import deployments
from mlctl.rollout.client import split as splits
from mlctl.rollout.domain.spec import Outcome, Slot
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal
from tests.support.command_line import Mlctl
from tests.support.planes import broken_connections
from tests.support.rollouts import Load, kill_daemon, quick_settings, quick_spec, revision
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow
LIVE, OTHER = revision("tiny:aa"), revision("tiny:bb")


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def shop(home: Path, port: int) -> Iterator[str]:
    """A deployment "shop" that serves tiny:aa."""
    assert home.is_absolute()
    deployments.up("shop", LIVE, port, settings=quick_settings())
    yield "shop"
    deployments.down("shop")


def served(port: int, n: int = 100, **headers: str) -> Counter[str]:
    """Which digests answer `n` requests."""
    url = f"http://127.0.0.1:{port}/v2/models/tiny/infer"
    with httpx.Client(trust_env=False, headers=headers) as client:
        return Counter(
            client.post(url, content=b"{}").json()["model_version"][:2] for _ in range(n)
        )


def weights(name: str) -> dict[Slot, int] | None:
    (found,) = deployments.status(name)
    return found.weights


def pid_of(name: str, role: str) -> int | None:
    with Journal(paths.journal()) as journal:
        found = journal.processes(name).get(role)
    return None if found is None else found[0].pid


def rejected(code: ErrorCode, *arguments: object) -> str:
    with pytest.raises(MlctlError) as caught:
        deployments.promote(*arguments)  # type: ignore[arg-type]
    assert caught.value.code is code
    return caught.value.hint or ""


def test_split__lasts_through_kills__until_it_is_ended(shop: str, port: int) -> None:
    with Load(port) as load:
        splits.split(shop, {LIVE: 50, OTHER: 50}, sticky=False)
        assert set(served(port)) == {"aa", "bb"}
        assert "--end --winner tiny:bb" in rejected(
            ErrorCode.ROLLOUT_ACTIVE, shop, OTHER, quick_spec()
        )
        kill_daemon(shop)
        assert weights(shop) == {Slot.BLUE: 50, Slot.GREEN: 50}
        before = pid_of(shop, "green/0")
        failed = load.failed
        assert before is not None
        os.kill(before, signal.SIGKILL)
        wait_until(
            lambda: pid_of(shop, "green/0") not in (None, before), what="the replica is restarted"
        )
        wait_until(lambda: weights(shop) == {Slot.BLUE: 50, Slot.GREEN: 50}, what="it serves again")
        # Only the requests that the killed process had in hand.
        (found,) = deployments.status(shop)
        broken = broken_connections(found.deployment.ports, Slot.GREEN)
        assert load.failed - failed <= load.clients * broken, load.answers
        failed = load.failed
        splits.split(shop, {LIVE: 90, OTHER: 10}, sticky=True)
        wait_until(lambda: weights(shop) == {Slot.BLUE: 90, Slot.GREEN: 10}, what="other shares")
        assert len(served(port, 20, **{"x-mlctl-client": "me"})) == 1
        wait_until(lambda: measured(shop), what="both slots were measured")
        assert splits.end(shop) is None
        wait_until(lambda: weights(shop) == {Slot.BLUE: 100, Slot.GREEN: 0}, what="the end")
        wait_until(lambda: "green/0" not in deployments.status(shop)[0].running, what="it stops")
        assert load.failed == failed, load.answers
    assert set(served(port, 20)) == {"aa"}
    assert deployments.history(shop) == ()


def measured(name: str) -> bool:
    (found,) = deployments.status(name)
    record = found.measured
    return record is not None and record.live.requests > 0 and record.other.requests > 0


def test_split_end__keep_the_other__takes_the_running_replica_and_can_be_rolled_back(
    shop: str, port: int
) -> None:
    with Load(port) as load:
        splits.split(shop, {LIVE: 80, OTHER: 20}, sticky=False)
        before = pid_of(shop, "green/0")
        rollout = splits.end(shop, OTHER)
        assert rollout is not None
        events = list(deployments.follow(shop, rollout))
        assert events[-1].body["outcome"] == Outcome.PROMOTED
        assert pid_of(shop, "green/0") == before
        assert set(served(port, 20)) == {"bb"}
        (found,) = deployments.status(shop)
        assert (found.deployment.split, found.deployment.live) == (None, OTHER)
        list(deployments.follow(shop, deployments.rollback(shop, "odd").id))
        assert set(served(port, 20)) == {"aa"}
    assert load.failed == 0, load.answers


@pytest.mark.parametrize(
    "shares",
    [
        {LIVE: 90, OTHER: 20},
        {LIVE: 100},
        {OTHER: 50, revision("tiny:cc"): 50},
        {LIVE: 100, OTHER: 0},
    ],
)
def test_split__shares_that_are_none__are_rejected(shop: str, shares: dict[object, int]) -> None:
    with pytest.raises(MlctlError) as caught:
        splits.split(shop, shares, sticky=False)  # type: ignore[arg-type]
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_split__other_never_starts__ends_and_says_why(shop: str, port: int) -> None:
    with pytest.raises(MlctlError, match="did not become ready") as caught:
        splits.split(shop, {LIVE: 50, revision("tiny:cc?ready=crash"): 50}, sticky=False)
    assert caught.value.code is ErrorCode.NOT_READY
    (found,) = deployments.status(shop)
    assert found.deployment.split is None
    assert set(served(port, 20)) == {"aa"}


def test_split_command__status_and_usage__are_clear(shop: str, home: Path) -> None:
    mlctl = Mlctl(home)
    with pytest.raises(MlctlError) as caught:
        splits.end(shop)
    assert caught.value.code is ErrorCode.NOT_FOUND
    assert mlctl.run("split", shop, "tiny:aa=x", "tiny:bb=1").returncode == 2
    assert mlctl.run("split", shop, "--winner", "tiny:aa").returncode == 2
    splits.split(shop, {LIVE: 75, OTHER: 25}, sticky=False)
    lines = mlctl.run("status", shop).stdout
    assert "tiny:aa 75 %: 0 requests" in lines
    assert "tiny:bb 25 %: 0 requests" in lines
    (found,) = mlctl.json("status", shop)["deployments"]
    assert (found["split"]["bento"], found["split"]["percent"]) == ("tiny:bb", 25)
    assert "mlctl split shop --end" in mlctl.run("rollback", shop).stderr
    ended = mlctl.json("split", shop, "--end")
    assert ended["serves"] == "tiny:aa"
