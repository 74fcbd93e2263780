"""The churn example, as a user types it: train, optimize, build, score tonight's customers."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bundle.home import HOME_VARIABLE
from examples.churn.train import train
from registry.tracking import TRACKING_VARIABLE
from tests.support.mlctl import Mlctl


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_churn__from_training_to_a_table__answers_every_customer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlctl, data = Mlctl(tmp_path / "home"), tmp_path / "data"
    mlctl.home.mkdir()
    monkeypatch.setenv(HOME_VARIABLE, str(mlctl.home))
    monkeypatch.delenv(TRACKING_VARIABLE, raising=False)
    assert train(data) == "1"
    rows = str(data / "evaluation.parquet")
    mlctl.json("optimize", "churn@candidate", "--data", rows)
    mlctl.json("build", "churn")
    tonight = pd.read_parquet(data / "tonight.parquet")
    assert tonight["age"].isna().any()
    assert tonight["city"].isna().any()
    scores = tmp_path / "scores"
    arguments = ("--in", str(data / "tonight.parquet"), "--out", str(scores), "--keep", "customer")
    done = mlctl.run("batch", "run", "churn", *arguments)
    assert done.returncode == 0, done.stderr
    answers = pd.concat(pd.read_parquet(path) for path in sorted(scores.glob("part-*.parquet")))
    assert sorted(answers["customer"]) == list(range(len(tonight)))
    assert {*answers["label"]} <= {"leaves", "stays", b"leaves", b"stays"}
    assert np.allclose(np.stack(answers["probabilities"].to_list()).sum(axis=1), 1.0)
