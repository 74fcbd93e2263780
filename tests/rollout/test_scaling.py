"""Replicas, sleep, hangs and reboots: real Envoy, real daemon, fake Bentos, live load."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import grpc
import httpx
import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.ports import free_ports
from mlctl.rollout.client import deployments
from mlctl.rollout.client import scaling as resizing
from mlctl.rollout.client.lifecycle import ensure_daemon
from mlctl.rollout.client.process_table import ProcessRow, listing
from mlctl.rollout.domain.process_ref import ProcessRef
from mlctl.rollout.domain.spec import DeploymentSettings, Outcome, Slot
from mlctl.rollout.drivers.local import logs, processes
from mlctl.rollout.drivers.local.fleet import replicas_of
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.records import JournalEvent
from tests.support.rollouts import Load, daemon_of, quick_settings, quick_spec, revision, story
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def shop(home: Path, port: int, request: pytest.FixtureRequest) -> Iterator[str]:
    """A deployment of tiny:aa with the changes of the settings that are the parameter."""
    assert home.is_absolute()
    settings = replace(quick_settings(), **getattr(request, "param", {}))
    deployments.up("shop", revision("tiny:aa"), port, settings=settings)
    yield "shop"
    deployments.down("shop")
    strays = processes.strays(processes.process_role(paths.directory("shop"), ""))
    assert list(strays) == []


def rows(name: str) -> dict[str, ProcessRow]:
    ((_, found),) = listing(name)
    return {row.role: row for row in found}


def infer(port: int) -> str:
    url = f"http://127.0.0.1:{port}/v2/models/tiny/infer"
    answer = httpx.post(url, content=b"{}", trust_env=False, timeout=60)
    return str(answer.raise_for_status().json()["model_version"])[:2]


def serves(port: int) -> bool:
    try:
        return infer(port) == "aa"
    except httpx.HTTPError:
        return False


def kinds(name: str) -> list[str]:
    return [event.kind for event in deployments.events(name)]


def asleep(name: str) -> bool:
    with Journal(paths.journal()) as journal:
        return replicas_of(journal, name, Slot.BLUE) == {}


@pytest.mark.parametrize("shop", [{"replicas": 2}], indirect=True)
def test_scaling__replicas_come_go_and_die__no_request_fails(shop: str, port: int) -> None:
    with Load(port) as load:
        for wanted in (3, 1, 2):
            resizing.scale(shop, wanted)
            wait_until(partial(resizing.settled, shop))
        events = _promote(shop, "tiny:bb")
        assert events[-1].body["outcome"] == Outcome.PROMOTED, story(events)
    assert load.failed == 0, load.answers
    found = rows(shop)
    assert set(found) == {"daemon", "proxy", "blue/0", "blue/1", "green/0", "green/1"}
    assert all(row.healthy for row in found.values())
    assert len({row.port for row in found.values() if row.port}) == 5
    victim = found["green/1"]
    os.kill(victim.pid, signal.SIGKILL)
    wait_until(lambda: rows(shop).get("green/1", victim).pid != victim.pid)
    wait_until(partial(resizing.settled, shop))
    assert rows(shop)["green/1"].restarts == 1
    assert rows(shop)["green/0"].restarts == 0


def _promote(name: str, tag: str) -> list[JournalEvent]:
    rollout = deployments.promote(name, revision(tag), quick_spec())
    with pytest.raises(MlctlError) as caught:
        resizing.scale(name, 5)
    assert caught.value.code is ErrorCode.ROLLOUT_ACTIVE
    return list(deployments.follow(name, rollout))


SLEEPY = {"min_replicas": 0, "max_replicas": 2, "idle_seconds": 1.0}


@pytest.mark.parametrize("shop", [SLEEPY], indirect=True)
def test_scale_to_zero__first_request__is_answered(shop: str, port: int) -> None:
    wait_until(partial(asleep, shop))
    with Load(port, clients=8) as load:
        wait_until(lambda: load.answers["200"] >= 50)
    assert load.failed == 0, load.answers
    wait_until(partial(asleep, shop))
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:  # type: ignore[no-untyped-call]
        ask = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        assert ask(b"hello", timeout=60) == b"hello"
    assert kinds(shop).count("scaled") >= 3
    wait_until(partial(asleep, shop))
    with Load(port) as load:
        rollout = deployments.promote(shop, revision("tiny:bb"), quick_spec())
        events = list(deployments.follow(shop, rollout))
    assert events[-1].body["outcome"] == Outcome.PROMOTED, story(events)
    assert load.failed == 0, load.answers


@pytest.mark.usefixtures("home")
def test_replica__hangs__is_started_again(port: int) -> None:
    tag = "tiny:aa?live=never"
    deployments.up("shop", revision(tag), port, settings=quick_settings())
    try:
        wait_until(lambda: "restarted" in kinds("shop"))
        (told, *_) = [e for e in deployments.events("shop") if e.kind == "restarted"]
        assert told.body["probe"] == "hung"
        assert told.body["role"] == "blue/0"
    finally:
        deployments.down("shop")


def test_daemon__dies__is_started_again(shop: str) -> None:
    former = daemon_of(shop)
    os.kill(former.pid, signal.SIGKILL)
    wait_until(lambda: daemon_of(shop).pid != former.pid)
    wait_until(lambda: rows(shop)["daemon"].healthy)
    assert kinds(shop).count("restarted") == 0


def crash(name: str) -> None:
    """What a power cut does: everything is gone, and another process may have a pid of ours."""
    with Journal(paths.journal()) as journal:
        found = journal.processes(name)
        for ref, _ in found.values():
            processes.kill(ref)
        for role, (ref, body) in found.items():
            wait_until(lambda ref=ref: not processes.alive(ref))  # type: ignore[misc]
            recycled = ProcessRef(os.getpid(), ref.started - 1000.0, ref.token)
            journal.put_process(name, role, recycled, body)
    paths.heartbeat(name).unlink(missing_ok=True)


@pytest.mark.parametrize("shop", [{"replicas": 2}], indirect=True)
def test_reboot__deployment_was_up__everything_is_started_again(shop: str, port: int) -> None:
    crash(shop)
    assert not serves(port)
    (back,) = deployments.bring_back_all()
    assert back.name == shop
    assert serves(port)
    wait_until(partial(resizing.settled, shop))
    assert "start_failed" not in kinds(shop)


def test_reboot__during_a_rollout__rolls_back(shop: str, port: int) -> None:
    spec = quick_spec(steps=(50, 100), step_seconds=60.0)
    with Load(port) as load:
        rollout = deployments.promote(shop, revision("tiny:bb"), spec)
        wait_until(lambda: '"weight": 50' in _last(shop) and load.answers["200"] > 20)
    crash(shop)
    with Journal(paths.journal()) as journal:
        ensure_daemon(journal, shop)
    events = list(deployments.follow(shop, rollout))
    assert events[-1].body["outcome"] == Outcome.ROLLED_BACK, story(events)
    wait_until(partial(serves, port))


def _last(name: str) -> str:
    return str(deployments.events(name)[-1].body).replace("'", '"')


@pytest.mark.usefixtures("home")
def test_up__without_a_bento__starts_the_last_live_one(port: int) -> None:
    settings = replace(quick_settings(), replicas=2)
    deployments.up("shop", revision("tiny:aa"), port, settings=settings)
    deployments.down("shop")
    with pytest.raises(MlctlError, match="down") as caught:
        resizing.scale("shop", 1)
    assert "mlctl up shop" in str(caught.value.hint)
    back = deployments.bring_back("shop")
    assert (back.live, back.ports.listen) == (revision("tiny:aa"), port)
    assert back.settings.replicas == 2
    assert infer(port) == "aa"
    assert deployments.bring_back("shop").created == back.created
    deployments.down("shop")


def test_logs__deployment_is_up__each_process_has_one(shop: str) -> None:
    directory = logs.directory_of(shop)
    assert set(logs.roles(directory)) == {"blue/0", "daemon", "proxy"}
    texts = [line.text for line in logs.tail(directory, "blue/0", 10)]
    assert any("start: tiny:aa as blue/0" in text for text in texts)
    assert "fake bento tiny:aa starts" in texts


@pytest.mark.parametrize(
    "wrong",
    [
        {"replicas": 0},
        {"workers": 0},
        {"max_replicas": 3},
        {"min_replicas": 4, "max_replicas": 3},
        {"replicas": 4, "min_replicas": 1, "max_replicas": 3},
        {"idle_seconds": 0.0},
    ],
)
def test_settings__contradictory__are_rejected(wrong: dict[str, int]) -> None:
    with pytest.raises(MlctlError) as caught:
        DeploymentSettings(**wrong)  # type: ignore[arg-type]
    assert caught.value.code is ErrorCode.INVALID_INPUT
