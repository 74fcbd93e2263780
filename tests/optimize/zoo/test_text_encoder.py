"""Text models as MLflow stores them, from the registry to the answers of their bundles."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.quiet import quiet
from mlctl.optimize.inputs.text.encoder import load_text_encoder, read_text_encoder
from mlctl.optimize.pipeline import optimize
from mlctl.optimize.recipes.fp32 import Fp32
from mlctl.registry.catalog import SourceModel, artifacts_sha256
from mlctl.registry.hugging_face import read_folder
from mlctl.registry.mlflow_catalog import MlflowCatalog
from mlctl.registry.mlmodel import read_mlmodel
from mlctl.services.model.scorer import Scorer, join_rows, split_rows
from mlctl.services.model.settings import RuntimeSettings
from tests.support.memory_catalog import MemoryCatalog
from tests.support.sources import save_rows
from tests.support.text_models import sentences, text_pipeline, texts

pytestmark = pytest.mark.slow


def store(pipeline: Any, root: Path) -> SourceModel:
    """Store a pipeline as MLflow does; return it as a registered version."""
    import mlflow.transformers

    with quiet():
        mlflow.transformers.save_model(pipeline, root, pip_requirements=["transformers"])
    found = read_mlmodel(root, "models:/reviews/1")
    assert not found.pickled
    return SourceModel(
        name="reviews",
        version="1",
        uri="models:/reviews/1",
        run_id="",
        format=found.format,
        signature=found.signature,
        artifacts=root,
        model_path=found.path,
        sha256=artifacts_sha256(root),
    )


def served(source: SourceModel, folder: Path, fresh: np.ndarray) -> dict[str, np.ndarray]:
    """Return the answers of the model's bundle, seven rows in each request."""
    rows = save_rows(folder / "rows.npz", {"text": np.array(sentences(120, 1))})
    result = optimize("reviews", rows, catalog=MemoryCatalog([source]), recipes=[Fp32()])
    assert result.bundle.manifest.batching.row_independent
    scorer = Scorer.open(result.bundle, RuntimeSettings())
    return join_rows([scorer.run(part) for part in split_rows({"text": fresh}, 7)])


@pytest.mark.usefixtures("home")
def test_text_classifier__from_a_folder__is_registered_with_its_task(
    pipeline: Any, tmp_path: Path
) -> None:
    pipeline.save_pretrained(tmp_path / "bert")
    imported = MlflowCatalog().import_text_model(read_folder(tmp_path / "bert", "reviews"))
    source = MlflowCatalog().resolve("reviews")
    assert (imported.uri, imported.signature) == (source.uri, source.signature)
    assert not source.generates
    assert not source.pickle_allowed
    assert read_text_encoder(source).labels == ("bad", "fine", "good")
    load_text_encoder(source)


@pytest.fixture(scope="module")
def pipeline() -> Any:
    return text_pipeline("text-classification")


@pytest.fixture(scope="module")
def stored(pipeline: Any, tmp_path_factory: pytest.TempPathFactory) -> SourceModel:
    return store(pipeline, tmp_path_factory.mktemp("text") / "model")


@pytest.mark.usefixtures("home")
def test_text_classifier__from_the_registry__answers_like_the_pipeline(
    stored: SourceModel, pipeline: Any, tmp_path: Path
) -> None:
    found = served(stored, tmp_path, texts(1000, 2))
    with quiet():
        want = pipeline(sentences(1000, 2), top_k=None, truncation=True, batch_size=64)
    expected = [{each["label"]: each["score"] for each in row} for row in want]
    names = ("bad", "fine", "good")
    np.testing.assert_allclose(
        found["probabilities"], [[row[name] for name in names] for row in expected], atol=1e-5
    )
    assert [label.decode() for label in found["label"]] == [
        max(row, key=lambda name: row[name]) for row in expected
    ]


@pytest.mark.usefixtures("home")
def test_token_classifier__from_the_registry__finds_the_entities_of_the_pipeline(
    tmp_path: Path,
) -> None:
    pipeline = text_pipeline("token-classification")
    found = served(store(pipeline, tmp_path / "model"), tmp_path, texts(200, 2))
    with quiet():
        want = pipeline(sentences(200, 2), batch_size=64)
    keys = ("entity", "start", "end")
    assert [json.loads(each) for each in found["entities"]] == [
        [{key: entity[key] for key in keys} for entity in row] for row in want
    ]
    lowest = [min((entity["score"] for entity in row), default=1.0) for row in want]
    np.testing.assert_allclose(found["min_score"], lowest, atol=1e-5)


@pytest.mark.usefixtures("home")
def test_feature_extraction__from_the_registry__is_the_mean_of_the_states(tmp_path: Path) -> None:
    pipeline = text_pipeline("feature-extraction")
    found = served(store(pipeline, tmp_path / "model"), tmp_path, texts(200, 2))
    with quiet():
        states = pipeline(sentences(200, 2), tokenize_kwargs={"truncation": True})
    want = [np.mean(row[0], axis=0) for row in states]
    np.testing.assert_allclose(found["embedding"], want, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"architectures": ["BertForMaskedLM"]}, "it is BertForMaskedLM, not an encoder for text-"),
        ({"architectures": ["GPT2LMHeadModel"]}, "it is GPT2LMHeadModel, not an encoder"),
        ({"architectures": ["T5Model"], "is_encoder_decoder": True}, "it is T5Model, not an enc"),
        ({"problem_type": "multi_label_classification"}, "does not choose one of several labels"),
        ({"id2label": {"0": "LABEL_0"}}, "does not choose one of several labels"),
    ],
)
def test_text_model__another_task__is_rejected(
    stored: SourceModel, tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    shutil.copytree(stored.artifacts, tmp_path / "copy")
    path = tmp_path / "copy" / stored.model_path.name / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    changed = dataclasses.replace(stored, artifacts=tmp_path / "copy", model_path=path.parent)
    with pytest.raises(MlctlError, match=reason) as caught:
        read_text_encoder(changed)
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL
