"""The fraud example, as a user types it: train, optimize, send payments, score the stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bundle.home import HOME_VARIABLE
from cli.main import cli
from registry.tracking import TRACKING_VARIABLE


def mlctl(*arguments: str) -> str:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
def test_fraud__from_training_to_a_stream__answers_every_payment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from examples.fraud.train import STREAMED_ROWS, train  # loads XGBoost

    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    monkeypatch.delenv(TRACKING_VARIABLE, raising=False)
    data, stream = tmp_path / "data", f"sqlite://{tmp_path}/events.db"
    assert train(data) == "1"
    rows = str(data / "evaluation.parquet")
    found: dict[str, Any] = json.loads(
        mlctl("optimize", "fraud@candidate", "--data", rows, "--json")
    )
    assert found["source_score"] > 0.8
    assert found["splits"]["differ"] == 0
    mlctl("stream", "send", f"{stream}#payments", "--in", str(data / "payments.jsonl"))
    bundle = str(tmp_path / "home" / "bundles" / found["digest"])
    source, target = ("--in", f"{stream}#payments"), ("--out", f"{stream}#scores")
    mlctl("stream", "run", bundle, *source, *target, "--keep", "payment", "--until-empty")
    lines = mlctl("stream", "peek", f"{stream}#scores", "--last", "1000", "--json").splitlines()
    answers = [json.loads(line) for line in lines]
    values = [json.loads(answer["value"]) for answer in answers]
    assert sorted(value["payment"] for value in values) == list(range(STREAMED_ROWS))
    assert {value["label"] for value in values} == {0, 1}
