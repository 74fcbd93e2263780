from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.ports import free_ports, require_free, resolve_host


def test_free_ports__several__are_distinct() -> None:
    assert len(set(free_ports(5))) == 5


def test_require_free__port_in_use__is_rejected() -> None:
    free, taken = free_ports(2)
    require_free("127.0.0.1", free, taken)
    with socket.create_server(("127.0.0.1", taken)), pytest.raises(MlctlError) as caught:
        require_free("127.0.0.1", free, taken)
    assert caught.value.code is ErrorCode.PORT_TAKEN
    assert f"127.0.0.1:{taken}" in caught.value.message


def test_resolve_host__name_or_address__is_an_address() -> None:
    assert resolve_host("localhost") == "127.0.0.1"
    assert resolve_host("::1") == "::1"
    with pytest.raises(MlctlError, match="'no such host'") as caught:
        resolve_host("no such host")
    assert caught.value.code is ErrorCode.INVALID_INPUT


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_require_free__port_in_use_on_ipv6__ipv4_is_free() -> None:
    (port,) = free_ports(1)
    require_free("::1", port)
    with socket.create_server(("::1", port), family=socket.AF_INET6):
        require_free("127.0.0.1", port)
        with pytest.raises(MlctlError, match=rf"\[::1\]:{port}"):
            require_free("::1", port)


def test_free_ports__many__are_below_the_ports_of_outgoing_connections() -> None:
    ports = free_ports(20)
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(ports)) == 20
    assert max(ports) < lowest


def test_free_ports__only_candidate_is_in_use__fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        _offer_only(monkeypatch, server.getsockname()[1])
        with pytest.raises(MlctlError, match="fewer than 1"):
            free_ports(1)


@pytest.mark.slow
def test_free_ports__picked_by_another_process__is_not_picked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pick = "from mlctl.core.ports import free_ports; print(*free_ports(1), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", pick], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as picker:
        assert picker.stdout is not None
        port = int(picker.stdout.readline())
        _offer_only(monkeypatch, port)
        with pytest.raises(MlctlError, match="fewer than 1"):
            free_ports(1)
        picker.communicate("\n")
    assert free_ports(1) == (port,)


def test_free_ports__many_calls__hold_few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlctl.core.ports._MAX_HELD", 2)
    monkeypatch.setattr("mlctl.core.ports._held", held := deque[int]())
    first = free_ports(2)
    newest = free_ports(1)
    assert len(held) == 2
    _offer_only(monkeypatch, first[0])
    assert free_ports(1) == first[:1], "the oldest pick is given up"
    _offer_only(monkeypatch, newest[0])
    with pytest.raises(MlctlError, match="fewer than 1"):
        free_ports(1)
    for descriptor in held:
        os.close(descriptor)


def _offer_only(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    monkeypatch.setattr("mlctl.core.ports._CANDIDATES", range(port, port + 1))
    monkeypatch.setattr("mlctl.core.ports._MAX_TRIES", 1)
