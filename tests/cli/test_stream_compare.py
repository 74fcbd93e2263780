"""A shadow beside a live run, and `mlctl stream compare`, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.main import cli
from services.stream.base import Outgoing, StreamUrl
from tests.services.stream.contract import read, send
from tests.support.bundles import make_bundle

MESSAGES = 1000


@pytest.fixture
def home(tmp_path: Path) -> Path:
    make_bundle(tmp_path / "blue")
    make_bundle(tmp_path / "same", name="same")
    make_bundle(tmp_path / "green", scale=-3.0)
    rows = [b'{"id": %d, "x": [%d, %d, 0, 0]}' % (n, n % 13, n % 7) for n in range(MESSAGES)]
    send(StreamUrl.parse(place(tmp_path, "in")), [Outgoing(row) for row in (*rows, b"nonsense")])
    assert invoke(*run(tmp_path, "blue", "out", "--keep", "id")).exit_code == 0
    return tmp_path


def place(home: Path, topic: str) -> str:
    return f"sqlite://{home / 'events.db'}#{topic}"


def run(home: Path, model: str, target: str, *options: str) -> list[str]:
    ends = ["--in", place(home, "in"), "--out", place(home, target), "--until-empty"]
    return ["stream", "run", str(home / model), *ends, *options]


def invoke(*words: str) -> Result:
    return CliRunner().invoke(cli, [*words])


@pytest.mark.parametrize(("model", "code"), [("same", 0), ("green", 10)])
def test_stream_compare__shadow_of_each_model__exits_by_agreement(
    home: Path, model: str, code: int
) -> None:
    assert invoke(*run(home, model, "shadow", "--shadow")).exit_code == 0
    assert len(read(StreamUrl.parse(place(home, "shadow")))) == MESSAGES
    # The live run's dead letters are its own.
    assert len(read(StreamUrl.parse(place(home, "in.dead")))) == 1
    assert len(read(StreamUrl.parse(place(home, "shadow.dead")))) == 1
    result = invoke("stream", "compare", place(home, "out"), place(home, "shadow"), "--json")
    assert result.exit_code == code, result.output
    found = json.loads(result.stdout)
    assert found["messages"] == MESSAGES
    assert found["verdict"] == ("advance" if code == 0 else "rollback")
    assert found["live"] != found["candidate"]
    assert found["left_out"] == ["id"]


def test_stream_compare__too_few_messages__is_inconclusive(home: Path) -> None:
    few = ["--max-messages", "20", "--shadow"]
    arguments = [each for each in run(home, "same", "few", *few) if each != "--until-empty"]
    assert invoke(*arguments).exit_code == 0
    result = invoke("stream", "compare", place(home, "out"), place(home, "few"))
    assert result.exit_code == 11, result.output
    assert "20 messages compared, 0 differ" in result.stdout
    result = invoke("stream", "compare", place(home, "in"), place(home, "few"))
    assert result.exit_code == 2
    assert "was not written by" in result.stderr
