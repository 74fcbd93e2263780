"""`mlctl stream run` and `doctor` as a user calls them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mlctl.cli.main import cli
from mlctl.services.stream.base import Outgoing, StreamUrl
from mlctl.services.stream.transports.sqlite import transport
from tests.services.stream.contract import read, send
from tests.support.bundles import make_bundle
from tests.support.wait import wait_until


@pytest.fixture
def home(tmp_path: Path) -> Path:
    make_bundle(tmp_path / "bundle")
    rows = [b'{"x": [%d, 0, 0, 0]}' % n for n in range(50)]
    send(place(tmp_path, "in"), [Outgoing(row) for row in (*rows, b"nonsense")])
    return tmp_path


def place(home: Path, topic: str) -> StreamUrl:
    return StreamUrl.parse(f"sqlite://{home / 'events.db'}#{topic}")


def arguments(home: Path, *options: str) -> list[str]:
    file = f"sqlite://{home / 'events.db'}"
    ends = ["--in", f"{file}#in", "--out", f"{file}#out"]
    return ["stream", "run", str(home / "bundle"), *ends, *options]


def invoke(*words: str) -> Result:
    return CliRunner().invoke(cli, [*words])


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_stream_run__output__begins_with_the_guarantee_and_ends_with_totals(home: Path) -> None:
    result = invoke(*arguments(home, "--until-empty"))
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("Exactly once: ")
    assert "50 answers and 1 dead letter in" in result.stderr
    assert json.loads(read(place(home, "out"))[3].content) == {"y": [9.0, 3.0, 3.0, 3.0]}
    (letter,) = read(place(home, "in.dead"))
    assert letter.value == b"nonsense"
    assert dict(letter.headers)["mlctl-error"] == b"invalid_input"


def test_stream_run__json__is_one_document_per_line(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = invoke(*arguments(home, "--until-empty", "--json"))
    # Events are written past Python's own stdout, which is stderr as long as a transform may print.
    events = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert (events[0]["event"], events[0]["guarantee"]) == ("opened", "exactly once")
    assert [each["event"] for each in events[1:3]] == ["started", "committed"]
    assert events[2]["batch"]["dead"] == {"invalid_input": 1}
    (summary,) = lines(result)
    assert (summary["event"], summary["answers"], summary["dead"]) == ("summary", 50, 1)


def test_stream_run__too_many_dead_letters__exits_14(home: Path) -> None:
    send(place(home, "in"), [Outgoing(b"nonsense")] * 100)
    result = invoke(*arguments(home, "--until-empty", "--max-dead-rate", "10%"))
    assert result.exit_code == 14, result.output
    assert "not valid JSON" in result.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--max-dead-rate", "many"], "--max-dead-rate many"),
        (["--payload", "runes"], "--payload runes"),
        (["--dead", "pigeon://x"], "no transport for 'pigeon'"),
    ],
)
def test_stream_run__wrong_options__are_rejected(home: Path, options: list[str], said: str) -> None:
    result = invoke(*arguments(home, *options))
    assert result.exit_code == 2
    assert said in result.stderr


def test_stream_doctor__topic__shows_guarantee_and_lag(home: Path) -> None:
    asked = f"sqlite://{home / 'events.db'}#in"
    assert invoke(*arguments(home, "--max-messages", "20")).exit_code == 0
    found = json.loads(invoke("stream", "doctor", asked, "--json").stdout)
    assert (found["guarantee"], found["messages"], found["lag"]) == ("exactly once", 51, {"0": 31})
    assert "31 messages not answered by group 'mlctl'" in invoke("stream", "doctor", asked).stdout
    assert invoke("stream", "doctor", asked + "s").exit_code == 3


@pytest.mark.slow
def test_stream_run__sigterm__commits_and_exits_0(home: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "mlctl.cli.main", *arguments(home)], stderr=subprocess.PIPE
    )
    try:
        wait_until(lambda: transport.status(place(home, "in"), "mlctl").lag == {"0": 0})
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert len(read(place(home, "out"))) == 50
    groups = transport.status(place(home, "in"), "mlctl").groups or ()
    assert [(each.name, each.members) for each in groups] == [("mlctl", 0)], "it left"


def test_stream_run__unknown_scheme__lists_the_schemes() -> None:
    result = CliRunner().invoke(cli, ["stream", "run", "b", "--in", "foo://x", "--out", "y.jsonl"])
    assert result.exit_code == 2
    assert "no transport for 'foo'" in result.stderr
    assert "sqlite, kafka" in result.stderr
