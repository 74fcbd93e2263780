"""The examples of one command: trained and optimized, and asked as their pages say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from mlctl.bundle.verify import VerifiedBundle, verify
from mlctl.cli.main import cli
from mlctl.core.home import HOME_VARIABLE, state_dir
from mlctl.examples.churn import __main__ as churn
from mlctl.examples.ranking import __main__ as ranking
from mlctl.examples.recommendations import __main__ as recommendations
from mlctl.examples.reviews import __main__ as reviews
from mlctl.registry.tracking import TRACKING_VARIABLE
from mlctl.services.online.batching.streaming import Answer
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings
from mlctl.services.protocol.codec import V2Codec
from mlctl.services.protocol.priority import Priority
from tests.support.predict import post_all

pytestmark = pytest.mark.slow

Run = Callable[[click.Command], VerifiedBundle]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run an example in an empty home; return the bundle that it makes."""

    def run_example(command: click.Command) -> VerifiedBundle:
        monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
        monkeypatch.delenv(TRACKING_VARIABLE, raising=False)
        result = CliRunner().invoke(command, ["--data", str(tmp_path / "data")])
        assert result.exit_code == 0, result.output
        (manifest,) = state_dir("bundles").glob("*/manifest.json")
        return verify(manifest.parent)

    return run_example


def mlctl(*arguments: str) -> str:
    """Run a command in this process; return what it prints."""
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_churn__tonights_customers__each_has_an_answer(run: Run, tmp_path: Path) -> None:
    bundle, scores = run(churn.main), tmp_path / "scores"
    tonight = pd.read_parquet(tmp_path / "data" / "tonight.parquet")
    assert tonight["age"].isna().any()
    assert tonight["city"].isna().any()
    arguments = ("--in", str(tmp_path / "data" / "tonight.parquet"), "--out", str(scores))
    mlctl("batch", "run", str(bundle.root), *arguments, "--keep", "customer")
    answers = pd.concat(pd.read_parquet(path) for path in sorted(scores.glob("part-*.parquet")))
    assert sorted(answers["customer"]) == list(range(len(tonight)))
    assert {*answers["label"]} <= {"leaves", "stays", b"leaves", b"stays"}
    assert np.allclose(np.stack(answers["probabilities"].to_list()).sum(axis=1), 1.0)


def test_fraud__a_stream_of_payments__each_has_an_answer(run: Run, tmp_path: Path) -> None:
    from mlctl.examples.fraud import __main__ as fraud  # loads XGBoost

    bundle, stream = run(fraud.main), f"sqlite://{tmp_path}/events.db"
    evidence = json.loads((bundle.root / "evidence.json").read_bytes())
    assert evidence["source_score"] > 0.8
    assert evidence["splits"]["differ"] == 0
    payments = str(tmp_path / "data" / "payments.jsonl")
    mlctl("stream", "send", f"{stream}#payments", "--in", payments)
    ends = ("--in", f"{stream}#payments", "--out", f"{stream}#scores")
    mlctl("stream", "run", str(bundle.root), *ends, "--keep", "payment", "--until-empty")
    lines = mlctl("stream", "peek", f"{stream}#scores", "--last", "1000", "--json").splitlines()
    values = [json.loads(json.loads(line)["value"]) for line in lines]
    assert sorted(value["payment"] for value in values) == list(range(fraud.STREAMED_ROWS))
    assert {value["label"] for value in values} == {0, 1}


def test_reviews__texts_as_records__have_their_labels(run: Run) -> None:
    rows = [{"text": "the staff was very friendly and fast"}, {"text": "cold food, rude staff"}]
    (answer,) = post_all(run(reviews.main), [("application/json", json.dumps(rows).encode())])
    assert answer.json()["label"] == ["good", "bad"]


def test_ranking__a_hundred_candidates_in_one_request__are_ranked(run: Run) -> None:
    bundle = run(ranking.main)
    candidates, user = np.arange(ranking.CANDIDATES), 7
    body = json.dumps(ranking.request(user, candidates)).encode()
    (answer,) = post_all(bundle, [("application/json", body)])
    scores = answer.json()
    assert len(scores) == ranking.CANDIDATES
    likes, properties = ranking.tastes()
    match = properties[candidates] @ likes[user]
    assert np.corrcoef(scores, match)[0, 1] > 0.5
    assert ranking.ranked(candidates, scores)[0] == int(np.argmax(scores))


def test_recommendations__a_stored_customer_and_a_new_one__are_answered(
    run: Run, tmp_path: Path
) -> None:
    bundle = run(recommendations.main)
    tonight = tmp_path / "data" / "tonight.parquet"
    arguments = ("--in", str(tonight), "--out", "precomputed://recommendations")
    mlctl("batch", "run", str(bundle.root), *arguments, "--keep", "customer")
    new = dict.fromkeys(recommendations.GROUPS, 3.0)
    stored, online = asyncio.run(ask(bundle, [("c-17", {}), ("c-new", new)]))
    frame = pd.read_parquet(tonight).drop(columns="customer")
    (live,) = asyncio.run(ask(bundle, [("c-other", frame.iloc[17].to_dict())]))
    np.testing.assert_allclose(stored.outputs["prediction"], live.outputs["prediction"])
    sources = [(answer.parameters or {}).get("source") for answer in (stored, online)]
    assert sources == ["precomputed", "online"]
    assert online.outputs["prediction"].shape == (1, len(recommendations.GROUPS))


async def ask(
    bundle: VerifiedBundle, questions: list[tuple[str, dict[str, float]]]
) -> list[Answer]:
    """Return the answers of a server with stored answers to a key and the inputs of a row."""
    settings = ServerSettings.model_validate({"precomputed": "recommendations"})
    model = ServedModel(bundle, settings, registry=CollectorRegistry())
    codec = V2Codec(model.name, model.digest, model.signature)
    await model.start()
    try:
        found = []
        for key, row in questions:
            inputs = [
                {"name": name, "datatype": "FP64", "shape": [1], "data": [value]}
                for name, value in row.items()
            ]
            body = {"parameters": {"entity_key": key}, "inputs": inputs}
            request = codec.decode(json.dumps(body).encode(), None)
            found.append(await model.ask(request, None, Priority.NORMAL))
        return found
    finally:
        await model.stop()
