"""Whole deployments: real Envoy, real daemon, fake Bentos, live load."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import grpc
import httpx
import psutil
import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.ports import free_ports
from mlctl.rollout.client import deployments
from mlctl.rollout.domain.spec import Outcome, Ports, RolloutSpec, Slot
from mlctl.rollout.domain.statistics.verdict import Gate
from mlctl.rollout.drivers.local.processes import process_role, strays
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.records import JournalEvent
from tests.support.planes import broken_connections
from tests.support.rollouts import (
    Load,
    daemon_of,
    kill_daemon,
    quick_settings,
    quick_spec,
    revision,
    story,
    wait_for_event,
)
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow
ROLES = ("daemon", "proxy", *Slot)
# One write of the weights, on a busy machine; a step of these rollouts is longer.
PROMPT_SECONDS = 10.0


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def shop(home: Path, port: int) -> Iterator[str]:
    """A deployment "shop" that serves tiny:aa."""
    assert home.is_absolute()
    deployments.up("shop", revision("tiny:aa"), port, settings=quick_settings())
    yield "shop"
    deployments.down("shop")
    assert running("shop") == []


def running(name: str) -> list[psutil.Process]:
    directory = paths.directory(name)
    return [p for role in ROLES for p in strays(process_role(directory, role))]


def served(port: int) -> str:
    answer = httpx.post(
        f"http://127.0.0.1:{port}/v2/models/tiny/infer", content=b"{}", trust_env=False
    )
    return str(answer.raise_for_status().json()["model_version"])[:2]


def run(name: str, tag: str, spec: RolloutSpec | None = None) -> list[JournalEvent]:
    rollout = deployments.promote(name, revision(tag), spec or quick_spec())
    return list(deployments.follow(name, rollout))


def pid_of(name: str, role: str) -> int:
    with Journal(paths.journal()) as journal:
        return journal.processes(name)[role][0].pid


def wait_for_weight(name: str, rollout: int, weight: int) -> None:
    wait_for_event(name, rollout, lambda event: event.body.get("weight") == weight)


def wait_for_ticks(name: str) -> None:
    """Wait until a daemon works: its process is there long before, and has to import much."""
    beats: set[int] = set()

    def several() -> bool:
        beats.add(paths.heartbeat(name).stat().st_mtime_ns)
        return len(beats) > 4  # the last of the former one, one at the start, and ticks

    wait_until(several, what="the daemon ticks")


def test_promote__good_revision__no_failed_request(shop: str, port: int) -> None:
    with Load(port) as load:
        events = run(shop, "tiny:bb", quick_spec(max_p99_ms=1999.0))
        assert events[-1].body["outcome"] == Outcome.PROMOTED, story(events)
        wait_until(lambda: load.answers["200"] > 200)
        assert served(port) == "bb"
    assert load.failed == 0, load.answers
    assert events[0].body["requested_max_p99_ms"] == 1999.0
    assert events[0].body["max_p99_ms"] == 2000.0
    (status,) = deployments.status(shop)
    assert status.deployment.live == revision("tiny:bb")
    assert status.deployment.champion == revision("tiny:bb").digest
    assert status.weights == {Slot.BLUE: 0, Slot.GREEN: 100}
    assert status.running == {"daemon": True, "proxy": True, "blue/0": True, "green/0": True}
    assert status.deployment.previous is not None
    assert status.deployment.previous.revision == revision("tiny:aa")
    with pytest.raises(MlctlError) as caught:
        deployments.promote(shop, revision("tiny:bb"), quick_spec())
    assert caught.value.code is ErrorCode.ALREADY_LIVE


def test_promote__bad_revisions__rolled_back_with_the_gate(shop: str, port: int) -> None:
    with Load(port) as load:
        slow = run(shop, "tiny:bb?delay=0.3&slow=0.5", quick_spec(max_p99_ms=200.0))
        assert load.failed == 0, load.answers
        failing = run(shop, "tiny:cc?fail=0.4")
    for events, gate in ((slow, Gate.LATENCY_VS_LIMIT), (failing, Gate.ERRORS_VS_LIMIT)):
        body = events[-1].body
        ended = (body["outcome"], body["verdict"]["gate"])
        assert ended == (Outcome.ROLLED_BACK, gate), story(events)
        assert body["verdict"]["value"] >= body["verdict"]["limit"]
        restored = next(event for event in events if event.kind == "traffic_restored")
        assert restored.body["seconds_since_decision"] < PROMPT_SECONDS
    assert set(load.answers) == {"200", "500"}
    assert served(port) == "aa"
    assert [rollout.outcome for rollout in deployments.history(shop)] == [Outcome.ROLLED_BACK] * 2


def test_promote__candidate_killed_at_half__rolled_back(shop: str, port: int) -> None:
    with Load(port) as load:
        spec = quick_spec(steps=(50, 100), step_seconds=30.0)
        rollout = deployments.promote(shop, revision("tiny:bb"), spec)
        wait_for_weight(shop, rollout, 50)
        wait_until(lambda: load.answers["200"] > 100)
        os.kill(pid_of(shop, "green/0"), signal.SIGKILL)
        events = list(deployments.follow(shop, rollout))
    assert events[-1].body["outcome"] == Outcome.ROLLED_BACK, story(events)
    assert events[-1].body["verdict"]["gate"] == Gate.HEALTH
    (found,) = deployments.status(shop)
    broken = broken_connections(found.deployment.ports, Slot.GREEN)
    assert load.failed <= load.clients * broken, load.answers


def test_rollback__rollout_under_way__traffic_back_at_once(shop: str, port: int) -> None:
    with Load(port) as load:
        spec = quick_spec(steps=(50, 100), step_seconds=60.0)
        rollout = deployments.promote(shop, revision("tiny:bb"), spec)
        wait_for_weight(shop, rollout, 50)
        with pytest.raises(MlctlError) as caught:
            deployments.promote(shop, revision("tiny:cc"), quick_spec())
        assert caught.value.code is ErrorCode.ROLLOUT_ACTIVE
        asked = time.time()
        assert deployments.rollback(shop, "odd numbers").id == rollout
        events = list(deployments.follow(shop, rollout))
    restored = next(event for event in events if event.kind == "traffic_restored")
    assert restored.at - asked < PROMPT_SECONDS
    assert events[-1].body["verdict"]["why"] == "odd numbers"
    assert load.failed == 0, load.answers


def test_rollback__after_a_promotion__previous_version_serves_at_once(shop: str, port: int) -> None:
    with Load(port) as load:
        assert run(shop, "tiny:bb")[-1].body["outcome"] == Outcome.PROMOTED
        kill_daemon(shop)  # the previous version is kept by the next daemon too
        deployments.status(shop)  # starts one
        wait_for_ticks(shop)
        requested = time.time()
        rollout = deployments.rollback(shop, "wrong answers")
        wait_until(lambda: served(port) == "aa")
        assert time.time() - requested < PROMPT_SECONDS
        events = list(deployments.follow(shop, rollout.id))
        assert {served(port) for _ in range(50)} == {"aa"}
    assert load.failed == 0, load.answers
    assert events[-1].body["outcome"] == Outcome.RESTORED, story(events)
    assert "cold" not in {key for event in events for key in event.body}
    restored = next(event for event in events if event.kind == "traffic_restored")
    assert restored.body["seconds_since_decision"] < PROMPT_SECONDS
    (status,) = deployments.status(shop)
    assert status.deployment.live == revision("tiny:aa")
    assert status.deployment.champion == revision("tiny:aa").digest
    assert status.deployment.previous is None
    with pytest.raises(MlctlError) as second:
        deployments.rollback(shop, "again")
    assert second.value.code is ErrorCode.NOT_FOUND
    wait_until(lambda: "green/0" not in deployments.status(shop)[0].running)


def test_rollback__previous_version_not_kept__started_first(shop: str, port: int) -> None:
    with Load(port, clients=2) as load:
        run(shop, "tiny:bb", replace(quick_spec(), keep_previous_seconds=0.0))
        wait_until(lambda: "blue/0" not in deployments.status(shop)[0].running)
        events = list(deployments.follow(shop, deployments.rollback(shop, "odd").id))
        assert served(port) == "aa"
    assert load.failed == 0, load.answers
    assert events[-1].body["outcome"] == Outcome.RESTORED, story(events)
    assert any(event.body.get("cold") for event in events)


def test_daemon__killed__next_command_replaces_it(shop: str, port: int) -> None:
    with Load(port) as load:
        spec = quick_spec(steps=(50, 100), step_seconds=1.0)
        rollout = deployments.promote(shop, revision("tiny:bb"), spec)
        wait_for_weight(shop, rollout, 50)
        former = kill_daemon(shop)
        events = list(deployments.follow(shop, rollout))
    assert daemon_of(shop) != former
    assert [event.kind for event in events].count("resumed") == 1
    assert events[-1].body["outcome"] == Outcome.PROMOTED, story(events)
    assert load.failed == 0, load.answers


def test_supervision__envoy_and_bento_killed__restarted(shop: str, port: int) -> None:
    for role in ("proxy", "blue/0"):
        former = pid_of(shop, role)
        os.kill(former, signal.SIGKILL)
        wait_until(partial(_replaced, shop, role, former))

    def answers() -> bool:
        try:
            return served(port) == "aa"
        except (httpx.HTTPError, ValueError):
            return False

    wait_until(answers)
    kinds = [event.kind for event in deployments.events(shop)]
    assert kinds.count("restarted") == 2


def _replaced(name: str, role: str, former: int) -> bool:
    with Journal(paths.journal()) as journal:
        found = journal.processes(name).get(role)
    return found is not None and found[0].pid != former


def test_grpc__same_port__its_errors_count(shop: str, port: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:  # type: ignore[no-untyped-call]
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        assert infer(b"hello", timeout=30) == b"hello"
        spec = quick_spec(steps=(50, 100), step_seconds=30.0)
        rollout = deployments.promote(shop, revision("tiny:bb?fail=1"), spec)
        wait_for_weight(shop, rollout, 50)

        def ended() -> bool:
            infer.future(b"hello", timeout=30).exception()
            found = deployments.events(shop, rollout=rollout)
            return found[-1].kind == "ended"

        wait_until(ended)
    (*_, last) = deployments.events(shop, rollout=rollout)
    assert last.body["verdict"]["gate"] == Gate.ERRORS_VS_LIMIT


def test_promote__candidate_crashes__verdict_has_its_log(shop: str, port: int) -> None:
    events = run(shop, "tiny:bb?ready=crash")
    assert events[-1].body["outcome"] == Outcome.ROLLED_BACK, story(events)
    assert "told to crash" in events[-1].body["verdict"]["why"]
    assert served(port) == "aa"


@pytest.mark.usefixtures("home")
def test_up__bento_crashes__nothing_left_running(port: int) -> None:
    with pytest.raises(MlctlError) as caught:
        deployments.up("shop", revision("tiny:aa?ready=crash"), port, settings=quick_settings())
    assert caught.value.code is ErrorCode.NOT_READY
    assert "told to crash" in caught.value.message
    assert running("shop") == []
    with pytest.raises(MlctlError) as gone:
        deployments.down("shop")
    assert gone.value.code is ErrorCode.DEPLOYMENT_NOT_FOUND


@pytest.mark.usefixtures("home")
def test_up__envoy_crashes__fails_at_once(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Envoy takes no host names; the one place that resolves them is put out of order."""
    monkeypatch.setattr(deployments, "resolve_host", str)
    settings = quick_settings()
    started = time.monotonic()
    with pytest.raises(MlctlError, match=r"the proxy did not start[\s\S]*malformed IP") as caught:
        deployments.up("shop", revision("tiny:aa"), port, host="localhost", settings=settings)
    assert caught.value.code is ErrorCode.NOT_READY
    assert time.monotonic() - started < settings.ready_seconds
    assert running("shop") == []


@pytest.mark.usefixtures("home")
def test_up__host_name__resolved(port: int) -> None:
    settings = quick_settings()
    up = deployments.up("shop", revision("tiny:aa"), port, host="localhost", settings=settings)
    assert up.ports.host == "127.0.0.1"
    assert served(port) == "aa"
    deployments.down("shop")


def test_up__revision_not_promoted__no_alias(shop: str, port: int) -> None:
    assert served(port) == "aa"
    (status,) = deployments.status(shop)
    assert status.deployment.champion is None
    assert "champion_written" not in [event.kind for event in deployments.events(shop)]


def test_daemon__replaced_from_another_shell__keeps_store_registry_tokens_and_settings(
    home: Path, port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tokens").write_text("0123456789abcdef")
    monkeypatch.setenv("MLCTL_TOKEN_FILE", str(tmp_path / "tokens"))
    monkeypatch.setenv("MLCTL_MAX_CLIENT_RPS", "50")
    monkeypatch.setenv("MLCTL_DEADLINE_MS", "2000")
    monkeypatch.delenv("MLCTL_SLOW_MS", raising=False)
    monkeypatch.setenv("BENTOML_HOME", str(home / "bentos"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///records.db")
    wanted = {
        "BENTOML_HOME": str(home / "bentos"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{Path('records.db').absolute()}",
        "MLCTL_TOKEN_FILE": str(tmp_path / "tokens"),
        "MLCTL_MAX_CLIENT_RPS": "50",
        "MLCTL_DEADLINE_MS": "2000",
        "MLCTL_SLOW_MS": "",
    }
    deployments.up("shop", revision("tiny:aa"), port, settings=quick_settings())
    try:
        former = pid_of("shop", "daemon")
        assert _environment_of(former).items() >= wanted.items()
        monkeypatch.setenv("BENTOML_HOME", "/elsewhere")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////elsewhere.db")
        monkeypatch.delenv("MLCTL_TOKEN_FILE")
        monkeypatch.delenv("MLCTL_MAX_CLIENT_RPS")
        monkeypatch.delenv("MLCTL_DEADLINE_MS")
        monkeypatch.setenv("MLCTL_SLOW_MS", "1")  # of the other shell, not of the deployment
        kill_daemon("shop")
        deployments.status("shop")
        wait_until(partial(_replaced, "shop", "daemon", former))
        assert _environment_of(pid_of("shop", "daemon")).items() >= wanted.items()
        server = pid_of("shop", "blue/0")
        os.kill(server, signal.SIGKILL)
        wait_until(partial(_replaced, "shop", "blue/0", server))
        assert _environment_of(pid_of("shop", "blue/0")).items() >= wanted.items()
    finally:
        deployments.down("shop")


def _environment_of(pid: int) -> dict[str, str]:
    return dict(psutil.Process(pid).environ())


@pytest.mark.usefixtures("home")
def test_up__port_in_use__nothing_started(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)), pytest.raises(MlctlError) as caught:
        deployments.up("shop", revision("tiny:aa"), port, settings=quick_settings())
    assert caught.value.code is ErrorCode.PORT_TAKEN
    assert running("shop") == []
    assert deployments.status() == ()


@pytest.mark.usefixtures("home")
def test_up__metrics_on_the_request_port__rejected(port: int) -> None:
    settings = replace(quick_settings(), metrics_port=port)
    with pytest.raises(MlctlError, match="give another for metrics"):
        deployments.up("shop", revision("tiny:aa"), port, settings=settings)
    assert deployments.status() == ()


def test_up__name_in_use__rejected(shop: str, port: int) -> None:
    with pytest.raises(MlctlError) as caught:
        deployments.up(shop, revision("tiny:aa"), port)
    assert caught.value.code is ErrorCode.DEPLOYMENT_EXISTS
    assert served(port) == "aa"


@pytest.mark.usefixtures("home")
def test_client__unknown_deployment_or_rollout__not_found() -> None:
    with Journal(paths.journal()) as journal:
        journal.create("farm", Ports(1, 2), quick_settings(), revision("tiny:aa"))
        rollout = journal.begin("farm", revision("tiny:bb"), quick_spec())
    for call in (deployments.status, deployments.down, deployments.history):
        with pytest.raises(MlctlError) as caught:
            call("shop")
        assert caught.value.code is ErrorCode.DEPLOYMENT_NOT_FOUND
    for name, number in (("shop", rollout), ("farm", rollout + 1)):
        with pytest.raises(MlctlError) as missing:
            next(deployments.follow(name, number))
        assert missing.value.code is ErrorCode.NOT_FOUND


@pytest.mark.usefixtures("home")
def test_promote__two_deployments_at_once__neither_evaluates_faster_than_its_ticks() -> None:
    settings = replace(quick_settings(), tick_seconds=0.5)
    spec = replace(quick_spec(steps=(50, 100), step_seconds=3.0), max_p99_ms=None)
    ports = dict(zip(("bank", "shop"), free_ports(2), strict=True))
    try:
        for name, port in ports.items():
            deployments.up(name, revision("tiny:aa"), port, settings=settings)
        with Load(ports["bank"], clients=2), Load(ports["shop"], clients=2):
            begun = {name: deployments.promote(name, revision("tiny:bb"), spec) for name in ports}
            stories = {name: list(deployments.follow(name, begun[name])) for name in ports}
    finally:
        for deployment in deployments.status():
            deployments.down(deployment.deployment.name)
    for name, events in stories.items():
        looks = [event.at for event in events if event.kind == "tick"]
        assert len(looks) > 3, story(events)
        assert len(looks) - 1 <= (looks[-1] - looks[0]) / settings.tick_seconds + 1, (name, looks)
