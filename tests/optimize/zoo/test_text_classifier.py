"""A text classifier as MLflow stores it, from the registry to the answers of its bundle."""

from __future__ import annotations

import dataclasses
import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import Batching
from optimize.pipeline import optimize
from optimize.recipes.fp32 import Fp32
from optimize.text.classifier import read_text_classifier
from registry.catalog import SourceModel, artifacts_sha256
from registry.mlmodel import read_mlmodel
from registry.quiet import quiet
from services.runtime.scorer import Scorer
from services.runtime.settings import RuntimeSettings
from tests.support.memory_catalog import MemoryCatalog
from tests.support.sources import save_rows

pytestmark = pytest.mark.slow

WORDS = ["the", "service", "was", "food", "room", "good", "bad", "fine", "awful", "never"]
LENGTH = 16


def sentences(rows: int, seed: int) -> list[str]:
    """Return texts of 1 to 30 words, a word in ten unknown: longer than the model takes."""
    rng = np.random.default_rng(seed)
    words = [*WORDS, "xylophone"]
    return [" ".join(rng.choice(words, rng.integers(1, 31))) for _ in range(rows)]


@pytest.fixture(scope="module")
def pipeline() -> Any:
    """A tiny encoder with a tokenizer of its own."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    library: Any = importlib.import_module("transformers")

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    fast = library.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=LENGTH,
    )
    torch.manual_seed(3)
    config = library.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
        initializer_range=0.5,
        pad_token_id=0,
        id2label={0: "bad", 1: "fine", 2: "good"},
        label2id={"bad": 0, "fine": 1, "good": 2},
    )
    return library.pipeline(
        "text-classification",
        model=library.BertForSequenceClassification(config).eval(),
        tokenizer=fast,
    )


@pytest.fixture(scope="module")
def stored(pipeline: Any, tmp_path_factory: pytest.TempPathFactory) -> SourceModel:
    import mlflow.transformers

    root = tmp_path_factory.mktemp("text") / "model"
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


def test_text_classifier__from_the_registry__answers_like_the_pipeline(
    stored: SourceModel, pipeline: Any, home: Path, tmp_path: Path
) -> None:
    del home
    rows = save_rows(tmp_path / "rows.npz", {"text": np.array(sentences(120, 1))})
    result = optimize("reviews", rows, catalog=MemoryCatalog([stored]), recipes=[Fp32()])
    batching: Batching = result.bundle.manifest.batching
    assert batching.row_independent
    fresh = sentences(1000, 2)
    with quiet():
        want = pipeline(fresh, top_k=None, truncation=True, batch_size=64)
    scorer = Scorer.open(result.bundle, RuntimeSettings())
    found = [
        scorer.run({"text": np.array([text.encode() for text in fresh[at : at + 7]], object)})
        for at in range(0, len(fresh), 7)
    ]
    shares = np.concatenate([answers["probabilities"] for answers in found])
    labels = np.concatenate([answers["label"] for answers in found])
    expected = [{each["label"]: each["score"] for each in row} for row in want]
    np.testing.assert_allclose(
        shares, [[row[name] for name in ("bad", "fine", "good")] for row in expected], atol=1e-5
    )
    assert [label.decode() for label in labels] == [
        max(row, key=lambda n: row[n]) for row in expected
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"architectures": ["BertForMaskedLM"]}, "it is BertForMaskedLM, not a model For"),
        ({"problem_type": "multi_label_classification"}, "does not choose one of several labels"),
        ({"id2label": {"0": "LABEL_0"}}, "does not choose one of several labels"),
    ],
)
def test_text_classifier__another_task__is_rejected(
    stored: SourceModel, tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    shutil.copytree(stored.artifacts, tmp_path / "copy")
    path = tmp_path / "copy" / stored.model_path.name / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    changed = dataclasses.replace(stored, artifacts=tmp_path / "copy", model_path=path.parent)
    with pytest.raises(MlctlError, match=reason) as caught:
        read_text_classifier(changed)
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL
