from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bundle.errors import ErrorCode, MlctlError
from rollout.domain.ports import ProcessState, RunningRevision
from rollout.domain.spec import Endpoint, Slot
from rollout.drivers.local import processes
from rollout.drivers.local.launcher import LocalLauncher, free_ports, require_free, resolve_host
from tests.support.rollouts import quick_settings, revision
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("home")]


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[LocalLauncher]:
    (tmp_path / "logs").mkdir()
    launcher = LocalLauncher(tmp_path / "logs", quick_settings())
    yield launcher
    launcher.close()
    for slot in Slot:
        processes.end_strays(f"{tmp_path}:{slot}")


def started(launcher: LocalLauncher, tag: str) -> RunningRevision:
    return launcher.start(Slot.BLUE, revision(tag))


def test_ready_once_the_digest_is_served(launcher: LocalLauncher) -> None:
    served = started(launcher, "tiny:aa")
    wait_until(lambda: launcher.probe(served) is ProcessState.READY)
    launcher.stop(served)
    wait_until(lambda: launcher.probe(served) is ProcessState.DEAD)


def test_another_digest_is_not_ready(launcher: LocalLauncher) -> None:
    served = started(launcher, "tiny:aa")
    wait_until(lambda: launcher.probe(served) is ProcessState.READY)
    other = replace(served, revision=revision("tiny:bb"), process=served.process)
    wrong = LocalLauncher(Path(served.log).parent, quick_settings())
    wait_until(lambda: wrong.probe(other) is ProcessState.WRONG_MODEL)
    named = replace(served, revision=replace(served.revision, bento="other:aa"))
    wait_until(lambda: wrong.probe(named) is ProcessState.WRONG_MODEL)
    wrong.close()


def test_a_server_that_never_gets_ready_stays_starting(launcher: LocalLauncher) -> None:
    served = started(launcher, "tiny:aa?ready=never")
    wait_until(lambda: "start: tiny:aa" in Path(served.log).read_text())
    assert launcher.probe(served) is ProcessState.STARTING


def test_a_server_that_takes_a_connection_and_does_not_answer_holds_no_look_up(
    launcher: LocalLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollout.drivers.local.launcher._PROBE_TIMEOUT", PATIENCE_SECONDS)
    patient = LocalLauncher(tmp_path, quick_settings())
    served = started(launcher, "tiny:aa?ready=never")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        loading = replace(served, endpoint=Endpoint(silent.getsockname()[1], 1))
        begun = time.monotonic()
        assert patient.probe(loading) is ProcessState.STARTING
        assert patient.probe(loading) is ProcessState.STARTING
        assert time.monotonic() - begun < PATIENCE_SECONDS / 2
    patient.close()


def test_a_crash_is_dead_and_leaves_a_log(launcher: LocalLauncher) -> None:
    served = started(launcher, "tiny:aa?ready=crash")
    wait_until(lambda: launcher.probe(served) is ProcessState.DEAD)
    assert "told to crash" in processes.log_tail(Path(served.log))
    again = started(launcher, "tiny:bb?ready=never")
    assert again.log == served.log
    assert "told to crash" not in processes.log_tail(Path(again.log))


def test_starting_again_ends_what_was_left_over(launcher: LocalLauncher) -> None:
    first = started(launcher, "tiny:aa")
    second = started(launcher, "tiny:aa")
    wait_until(lambda: launcher.probe(first) is ProcessState.DEAD)
    assert launcher.probe(second) is not ProcessState.DEAD


def test_free_ports_are_distinct() -> None:
    assert len(set(free_ports(5))) == 5


def test_a_port_that_is_listened_on_is_taken() -> None:
    free, taken = free_ports(2)
    require_free("127.0.0.1", free, taken)
    with socket.create_server(("127.0.0.1", taken)), pytest.raises(MlctlError) as caught:
        require_free("127.0.0.1", free, taken)
    assert caught.value.code is ErrorCode.PORT_TAKEN
    assert f"127.0.0.1:{taken}" in caught.value.message


def test_a_host_is_an_address() -> None:
    assert resolve_host("localhost") == "127.0.0.1"
    assert resolve_host("::1") == "::1"
    with pytest.raises(MlctlError, match="'no such host'") as caught:
        resolve_host("no such host")
    assert caught.value.code is ErrorCode.INVALID_INPUT


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_a_port_is_taken_per_address_family() -> None:
    (port,) = free_ports(1)
    require_free("::1", port)
    with socket.create_server(("::1", port), family=socket.AF_INET6):
        require_free("127.0.0.1", port)
        with pytest.raises(MlctlError, match=rf"\[::1\]:{port}"):
            require_free("::1", port)


def test_own_ports_are_none_that_an_outgoing_connection_may_get() -> None:
    ports = free_ports(20)
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(ports)) == 20
    assert max(ports) < max(lowest, 32_768)


def test_a_port_that_is_taken_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port)):
        monkeypatch.setattr("rollout.drivers.local.launcher._OWN_PORTS", range(port, port + 1))
        monkeypatch.setattr("rollout.drivers.local.launcher._MOST_TRIED", 1)
        with pytest.raises(MlctlError, match="fewer than 1"):
            free_ports(1)
