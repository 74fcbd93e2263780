from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from bundle.errors import ErrorCode, MlctlError
from rollout.model import Colour, Endpoint, Ports, Settings
from rollout.planes import proxy_of
from rollout.planes.haproxy import HaproxyFiles
from rollout.planes.haproxy_config import SLOTS, parse_entries, traffic_entries
from rollout.ports import PlaneRejected, PlaneUnavailable, Traffic

BLUE, GREEN = Colour
A, B, C = (Endpoint(port, port + 1) for port in (10, 20, 30))


@pytest.fixture
def files(tmp_path: Path) -> HaproxyFiles:
    made = HaproxyFiles(tmp_path, Ports(1, 2))
    made.prepare(BLUE)
    return made


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_haproxy_itself_accepts_the_file(host: str) -> None:
    with tempfile.TemporaryDirectory() as folder:  # short enough for a socket's name
        _check(HaproxyFiles(Path(folder), Ports(1, 2, host)))


def _check(files: HaproxyFiles) -> None:
    files.prepare(BLUE)
    files.place(GREEN, (A, B))
    files.prepare(BLUE)
    done = subprocess.run(
        [*files.command(), "-c"], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr


def test_without_haproxy_the_error_says_what_to_do(
    files: HaproxyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MlctlError, match="HAProxy is not installed") as caught:
        files.command()
    assert caught.value.code is ErrorCode.RUNTIME_MISSING
    assert "--proxy envoy" in str(caught.value.hint)


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")
def test_a_home_too_deep_for_a_socket_is_told(tmp_path: Path) -> None:
    deep = HaproxyFiles(tmp_path / ("d" * 100), Ports(1, 2))
    with pytest.raises(MlctlError, match="socket") as caught:
        deep.command()
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_who_has_a_slot_keeps_it_and_a_freed_one_is_taken_last(files: HaproxyFiles) -> None:
    assert files.place(BLUE, (A, B))[:3] == (A, B, None)
    assert files.place(BLUE, (B, C))[:3] == (None, B, C)
    assert files.place(BLUE, ())[:3] == (None, None, None)


def test_the_endpoints_survive_preparing_again(files: HaproxyFiles, tmp_path: Path) -> None:
    files.place(GREEN, (A,))
    again = HaproxyFiles(tmp_path, Ports(1, 2))
    again.prepare(BLUE)
    assert again.slots()[GREEN][0] == A
    again.reset()
    again.prepare(BLUE)
    assert again.slots()[GREEN][0] is None


def test_more_replicas_than_slots_are_refused(files: HaproxyFiles) -> None:
    many = tuple(Endpoint(port, port) for port in range(1, SLOTS + 2))
    with pytest.raises(PlaneRejected, match="replicas"):
        files.place(BLUE, many)


def test_without_haproxy_nothing_is_known_but_the_wish_is_kept(files: HaproxyFiles) -> None:
    with files.plane() as plane:
        with pytest.raises(PlaneUnavailable):
            plane.read()
        with pytest.raises(PlaneUnavailable):
            plane.connect(GREEN, (A,))
        with pytest.raises(PlaneUnavailable):
            plane.apply(Traffic({BLUE: 30, GREEN: 70}))
    assert "green 70" in files.traffic_map.read_text()
    assert files.slots()[GREEN][0] == A


@pytest.mark.parametrize(
    "traffic", [Traffic({BLUE: 30, GREEN: 70}, sticky=True), Traffic({BLUE: 100}, testers=GREEN)]
)
def test_what_was_written_is_read_back(traffic: Traffic) -> None:
    assert parse_entries(traffic_entries(traffic)) == traffic


def test_a_map_that_is_not_ours_says_nothing() -> None:
    assert parse_entries({"green": "1"}) is None


def test_settings_name_the_proxy(tmp_path: Path) -> None:
    proxy = proxy_of(tmp_path, Ports(1, 2), Settings(proxy="haproxy"))
    assert isinstance(proxy, HaproxyFiles)
    with pytest.raises(MlctlError, match="envoy, haproxy"):
        Settings(proxy="nginx")
