"""The churn example, as a user types it: train, optimize, build, score tonight's customers."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.support.mlctl import Mlctl

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_churn__from_training_to_a_table__answers_every_customer(tmp_path: Path) -> None:
    mlctl, data = Mlctl(tmp_path / "home"), tmp_path / "data"
    mlctl.home.mkdir()
    trained = subprocess.run(
        [sys.executable, "-m", "examples.churn.train", "--data", str(data)],
        env=mlctl.environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert trained.returncode == 0, trained.stderr
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
