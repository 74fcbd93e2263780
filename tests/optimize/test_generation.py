"""A language model from its folder to a sealed bundle, judged against transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bundle.home import HOME_VARIABLE
from optimize.pipeline import OptimizeResult, optimize
from registry.catalog import ModelFormat, SourceModel, artifacts_sha256
from registry.hugging_face import SIGNATURE
from tests.support.memory_catalog import MemoryCatalog
from tests.support.tiny_llm import ANSWERS, SENTENCES, tiny_llm_folder


def source() -> SourceModel:
    folder = tiny_llm_folder()
    return SourceModel(
        name="Tiny LLM",
        version="1",
        uri="models:/Tiny LLM/1",
        run_id="",
        format=ModelFormat.TRANSFORMERS,
        signature=SIGNATURE,
        artifacts=folder,
        model_path=folder,
        sha256=artifacts_sha256(folder),
        generates=True,
    )


def write_texts(path: Path) -> Path:
    path.write_text("".join(json.dumps({"text": each}) + "\n" for each in SENTENCES))
    return path


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> OptimizeResult:
    home = tmp_path_factory.mktemp("generation")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(home))
        texts = write_texts(home / "texts.jsonl")
        return optimize("Tiny LLM", texts, catalog=MemoryCatalog([source()]))


def test_x(result: OptimizeResult) -> None:
    for item in result.judged:
        print(item.variant.recipe, item.verdict, item.reason, item.variant.failure)
        if item.variant.measured: print(json.dumps(item.variant.measured.record(), default=str)[:1500])
    print(result.bundle.manifest)
    open("/work/wt/tmp/genopt/report.html","w").write(result.report)
    print(open(result.bundle.root/"evidence.json").read())
