"""A stream by hand, as the README shows it: send, run, look, redrive; pipes; metrics."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from mlctl.cli.main import cli
from tests.support.bundles import make_bundle
from tests.support.command_line import Mlctl
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow

ROWS = '{"x":[1,2,3,4],"id":1}\n{"x":[1,2,"a",4],"id":2}\n'


@pytest.fixture
def mlctl(tmp_path: Path) -> Mlctl:
    make_bundle(tmp_path / "tiny")
    (tmp_path / "rows.jsonl").write_text(ROWS)
    return Mlctl(tmp_path)


def _lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def _run(*arguments: str) -> Result:
    """In this process, since a new one for each command takes a second."""
    done = CliRunner().invoke(cli, ["stream", *arguments])
    assert done.exit_code == 0, done.output
    return done


def test_stream_tools__embedded_log__send_run_peek_and_redrive(
    mlctl: Mlctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mlctl.home)
    told = _run("send", "sqlite://e.db#in", "--in", "rows.jsonl", "--key-field", "id", "--json")
    assert json.loads(told.stdout) == {"url": "sqlite://e.db#in", "sent": 2}
    done = _run(
        "run", "tiny", "--in", "sqlite://e.db#in", "--out", "sqlite://e.db#out",
        "--keep", "id", "--until-empty", "--max-dead-rate", "100%",
    )  # fmt: skip
    assert done.stderr.startswith("Exactly once: ")
    (answer,) = _lines(_run("peek", "sqlite://e.db#out", "--json").stdout)
    assert json.loads(str(answer["value"])) == {"id": 1, "y": [12.0, 14.0, 16.0, 18.0]}
    shown = _run("peek", "sqlite://e.db#in.dead").stdout
    assert "key=2" in shown
    assert "mlctl-reason: tensor 'x': 'a' is not of datatype FP32" in shown
    lag = ("doctor", "sqlite://e.db#in", "--json")
    found = json.loads(_run(*lag).stdout)
    assert (found["total"], found["messages"]) == (0, 2)
    for sent in (1, 0):
        again = _run("redrive", "sqlite://e.db#in.dead", "--to", "sqlite://e.db#in", "--json")
        assert json.loads(again.stdout)["sent"] == sent
    assert json.loads(_run(*lag).stdout)["total"] == 1
    (group,) = json.loads(_run("groups", "sqlite://e.db#in", "--json").stdout)["groups"]
    assert (group["group"], group["lag"], group["members"]) == ("mlctl", 1, 0)
    assert "mlctl" in _run("groups", "sqlite://e.db#in").stdout
    _run("forget", "sqlite://e.db#in", "--group", "mlctl")
    assert json.loads(_run("groups", "sqlite://e.db#in", "--json").stdout)["groups"] == []
    kafka = ["stream", "forget", "kafka://localhost:9#in", "--group", "mlctl"]
    refused = CliRunner().invoke(cli, kafka)
    assert refused.exit_code == 2
    assert "does not wait for consumer groups" in refused.output


def test_stream_run__pipes__carry_only_answers(mlctl: Mlctl) -> None:
    command = ("stream", "run", "tiny", "--in", "-", "--out", "-", "--dead", "dead.jsonl")
    done = subprocess.run(
        mlctl.command(*command, "--max-dead-rate", "100%"),
        env=mlctl.environment,
        cwd=mlctl.home,
        input=ROWS,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert _lines(done.stdout) == [{"y": [12.0, 14.0, 16.0, 18.0]}]
    assert done.stderr.startswith("A pipe is read once: ")
    (letter,) = _lines((mlctl.home / "dead.jsonl").read_text())
    assert ["mlctl-error", "invalid_input"] in letter["mlctl"]["headers"]  # type: ignore[index]
    refused = CliRunner().invoke(cli, [*command, "--json"])
    assert refused.exit_code == 2
    assert "cannot both use standard output" in refused.stdout


def test_stream_run__metrics_port__is_scraped_until_sigterm(mlctl: Mlctl) -> None:
    process = subprocess.Popen(
        mlctl.command(
            "stream", "run", "tiny", "--in", "rows.jsonl", "--out", "out.jsonl",
            "--max-dead-rate", "100%", "--metrics-port", "0",
        ),
        env=mlctl.environment,
        cwd=mlctl.home,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stderr is not None
    address = process.stderr.readline().removeprefix("Metrics: ").strip()

    def counted() -> bool:
        text = httpx.get(address).text
        return 'mlctl_stream_messages_total{model="tiny",outcome="dead"} 1.0' in text

    try:
        wait_until(counted)
    finally:
        process.terminate()
        _out, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    assert (mlctl.home / "out.jsonl").read_text() == '{"y":[12.0,14.0,16.0,18.0]}\n'
