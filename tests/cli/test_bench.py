"""`mlctl bench` as a user types it."""

from __future__ import annotations

import json
import signal
import subprocess

import psutil
import pytest
from click.testing import CliRunner

from mlctl.bento.packaging import build_bento
from mlctl.cli.main import cli
from tests.support.bundles import make_bundle
from tests.support.command_line import Mlctl
from tests.support.wait import PATIENCE_SECONDS, wait_until


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("b", "--tune"), "--tune and --max-p99-ms need each other"),
        (("b", "--max-p99-ms", "5"), "--tune and --max-p99-ms need each other"),
        (("b", "--out", "f"), "--out needs --tune"),
        (("http://h:1", "--tune", "--max-p99-ms", "5"), "--tune takes a Bento"),
        (("http://h:1", "--data", "golden"), "--data golden takes a Bento"),
        (("b", "--clients", "1,x"), "numbers from 1 to 4096"),
        (("b", "--clients", "0"), "numbers from 1 to 4096"),
        (("http://h:1", "--cold", "3"), "--cold takes a Bento"),
        (("b", "--cold", "3", "--tune", "--max-p99-ms", "5"), "--cold takes a Bento"),
        (("b/one", "--model", "two"), "/one name different models"),
    ],
)
def test_bench__contradictory_options__are_rejected(arguments: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(cli, ["bench", *arguments])
    assert done.exit_code == 2
    assert said in done.output


def test_bench__invalid_url_or_no_server__fails_with_its_code() -> None:
    done = CliRunner().invoke(cli, ["bench", "file:///x", "--json"])
    assert done.exit_code == 2
    assert json.loads(done.output)["error"]["code"] == "invalid_input"
    done = CliRunner().invoke(cli, ["bench", "http://127.0.0.1:1", "--json"])
    assert json.loads(done.output)["error"]["code"] == "unavailable"


@pytest.fixture(scope="module")
def mlctl(tmp_path_factory: pytest.TempPathFactory) -> Mlctl:
    """A state directory with the Bento `tiny`."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENTOML_HOME", str(home / "bentoml"))
        build_bento(make_bundle(home / "tiny"), {})
    return Mlctl(home)


@pytest.mark.slow
def test_bench__bento__is_served_and_measured(mlctl: Mlctl) -> None:
    done = mlctl.run(
        "bench", "tiny", "--data", "golden", "--rows", "2", "--clients", "1,2",
        "--duration", "0.3s", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["model"] == "tiny"
    assert [run["clients"] for run in found["runs"]] == [1, 2]
    for run in found["runs"]:
        assert run["answered"] > 10
        assert not run["errors"]
        assert run["per_cpu_second"] > 0
        assert run["rows_per_batch"] >= 2
        assert 20 << 20 < run["memory_bytes"] < 4 << 30
    assert 0 < found["ready_seconds"] < 120
    assert not done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_bench__cold__has_the_stages_of_each_start(mlctl: Mlctl, protocol: str) -> None:
    done = mlctl.run("bench", "tiny", "--cold", "2", "--protocol", protocol, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["bento"].startswith("tiny:")
    assert len(found["starts"]) == 2
    for start in found["starts"]:
        # Rounded to milliseconds, and the first answer may take less than half of one.
        assert 0 < start["load_s"] < start["ready_s"] <= start["first_answer_s"] < 120
        assert 0 < start["warm_up_s"] < start["ready_s"]
        stages = start["process_s"] + start["load_s"] + start["warm_up_s"]
        assert start["ready_s"] == pytest.approx(stages, abs=0.01)
    ready = sorted(start["ready_s"] for start in found["starts"])
    assert found["summary"]["ready_s"]["max"] == ready[1]
    assert ready[0] <= found["summary"]["ready_s"]["p50"] <= ready[1]


@pytest.mark.slow
def test_bench__terminated__leaves_no_server(mlctl: Mlctl) -> None:
    command = mlctl.command("bench", "tiny", "--duration", "10m", "--json")
    started = subprocess.Popen(
        command, env=mlctl.environment, cwd=mlctl.home, stdout=subprocess.PIPE, text=True
    )
    try:
        parent = psutil.Process(started.pid)
        wait_until(parent.children, what="the server was started")
        below = parent.children(recursive=True)
        started.send_signal(signal.SIGTERM)
        told, _ = started.communicate(timeout=PATIENCE_SECONDS)
    finally:
        started.kill()
    assert json.loads(told)["error"]["code"] == "interrupted"
    _, alive = psutil.wait_procs(below, timeout=PATIENCE_SECONDS)
    assert not alive
