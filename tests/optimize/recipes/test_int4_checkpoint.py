"""Checkpoints that AWQ and GPTQ made: the fp32 weights they stand for, and variants of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.home import HOME_VARIABLE
from mlctl.optimize.pipeline import optimize
from mlctl.optimize.recipes.base import Target
from mlctl.optimize.recipes.discovery import select
from mlctl.optimize.recipes.int4_checkpoint import model_folder
from mlctl.registry.catalog import SourceModel
from mlctl.registry.hugging_face import read_folder
from mlctl.services.generate.engine import GenerationRequest, complete
from mlctl.services.generate.loading import open_engine
from mlctl.services.generate.sampling import TokenSampling
from mlctl.services.model.settings import RuntimeSettings
from tests.support.int4_checkpoint import save_int4_checkpoint
from tests.support.memory_catalog import MemoryCatalog
from tests.support.tiny_llm import ANSWERS, tiny_llm_source, write_texts

pytestmark = pytest.mark.slow
LAYER = "model.layers.1.mlp.up_proj"


def source_of(folder: Path) -> SourceModel:
    return replace(tiny_llm_source(), model_path=folder, artifacts=folder, sha256="2" * 64)


@pytest.mark.parametrize(
    ("method", "options"),
    [("awq", {}), ("gptq", {}), ("gptq", {"sym": True}), ("gptq", {"desc_act": True})],
)
def test_model_folder__int4_weights__are_the_same_numbers_in_fp32(
    tmp_path: Path, method: str, options: dict[str, Any]
) -> None:
    meant = save_int4_checkpoint(tmp_path / "int4", method, **options)
    assert read_folder(tmp_path / "int4", "tiny").task == "text-generation"
    with model_folder(tmp_path / "int4", dequantize=True) as folder:
        found = load_file(folder / "model.safetensors")
    assert found.keys() == meant.keys()
    assert all(np.array_equal(found[name], meant[name]) for name in meant)


def test_model_folder__a_layer_in_two_files__is_read_from_both(tmp_path: Path) -> None:
    meant = save_int4_checkpoint(tmp_path / "int4", "gptq")
    stored = load_file(tmp_path / "int4" / "model.safetensors")
    (tmp_path / "int4" / "model.safetensors").unlink()
    scales = {name: stored.pop(name) for name in list(stored) if name.endswith("scales")}
    for number, part in enumerate((stored, scales)):
        save_file(part, tmp_path / "int4" / f"model-{number}.safetensors", {"format": "pt"})
    (tmp_path / "int4" / "model.safetensors.index.json").write_text("{}")
    with model_folder(tmp_path / "int4", dequantize=True) as folder:
        assert [file.name for file in folder.glob("*.safetensors*")] == ["model.safetensors"]
        assert load_file(folder / "model.safetensors").keys() == meant.keys()


@pytest.mark.parametrize(("method", "desc_act"), [("awq", False), ("gptq", True)])
def test_optimize__an_int4_checkpoint__its_own_integers_answer_as_its_weights_in_fp32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, desc_act: bool
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    write_texts(tmp_path / "texts.jsonl")
    save_int4_checkpoint(tmp_path / method, method, desc_act=desc_act)

    catalog = MemoryCatalog([source_of(tmp_path / method)])
    result = optimize("tiny", tmp_path / "texts.jsonl", catalog=catalog)

    measured = {each.variant.recipe: each.variant.measured for each in result.judged}
    exact, half, stored = (measured[f"gen-{each}"] for each in ("fp32", "fp16", "int4"))
    assert exact is not None
    assert half is not None
    assert stored is not None
    assert exact.parity.relative_l2 < 1e-5
    assert exact.parity.agreement == half.parity.agreement == stored.parity.agreement == 1.0
    # ONNX Runtime rounds the inputs to 8 bits. With `g_idx` left in the graph it is 0.49.
    assert stored.parity.relative_l2 < 0.05
    assert (
        stored.details.settings["arithmetic"] == "matrix weights int4, as the checkpoint has them"
    )
    only = select(["gen-int4"], Target.CPU)
    served = optimize("tiny", tmp_path / "texts.jsonl", catalog=catalog, recipes=only).bundle
    assert served.manifest.variant.recipe == "gen-int4"
    batch = open_engine(served, RuntimeSettings())
    prompts = [tuple(batch.codec.encode(prompt)) for prompt in ANSWERS]
    greedy = TokenSampling(temperature=0)
    answers = complete(batch, [GenerationRequest(each, 30, greedy) for each in prompts])
    assert [answer.text for answer in answers] == list(ANSWERS.values())


@pytest.mark.parametrize(
    ("method", "part", "message"),
    [
        ("awq", "scales", f"{LAYER} has no scales"),
        ("gptq", "qzeros", f"{LAYER} has no qzeros"),
        ("awq", "qweight", f"the shapes of {LAYER}.qweight, scales and qzeros do not fit together"),
        ("gptq", "g_idx", f"{LAYER}.g_idx does not give each of 2 groups as many rows"),
    ],
)
def test_optimize__a_damaged_int4_checkpoint__names_the_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, part: str, message: str
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    write_texts(tmp_path / "texts.jsonl")
    folder = tmp_path / f"wrong-{part}"
    save_int4_checkpoint(folder, method)
    weights = load_file(folder / "model.safetensors")
    found = weights.pop(f"{LAYER}.{part}")
    if part == "qweight":
        weights[f"{LAYER}.qweight"] = found[:-1]
    if part == "g_idx":
        weights[f"{LAYER}.g_idx"] = found * 0
    save_file(weights, folder / "model.safetensors", {"format": "pt"})

    with pytest.raises(MlctlError, match=f"cannot be loaded: {message}") as caught:
        optimize("tiny", tmp_path / "texts.jsonl", catalog=MemoryCatalog([source_of(folder)]))

    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL
