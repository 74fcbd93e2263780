"""A language model from its folder to a sealed bundle, judged against transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch
import transformers
from prometheus_client import CollectorRegistry

from mlctl.bundle.manifest import GENERATION_FOLDER, GOLDEN_NAME
from mlctl.bundle.verify import verify
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.home import HOME_VARIABLE
from mlctl.optimize.generation.answers import Answers, compare_answers
from mlctl.optimize.generation.models import DecoderModel
from mlctl.optimize.generation.templates import check_chat_template
from mlctl.optimize.generation.texts import load_texts
from mlctl.optimize.inputs.prepare import OptimizeOptions
from mlctl.optimize.pipeline import NothingPassedError, OptimizeResult, optimize
from mlctl.optimize.plan import make_plan
from mlctl.optimize.recipes.base import Target
from mlctl.optimize.recipes.discovery import select
from mlctl.optimize.recipes.generation import build_engine_folder
from mlctl.optimize.result.evidence import REPORT_NAME
from mlctl.optimize.variants.choice import Judged
from mlctl.optimize.variants.goals import Goals
from mlctl.registry.hugging_face import SIGNATURE
from mlctl.services.generate.chat_template import ChatTemplate
from mlctl.services.model.golden import load_golden
from mlctl.services.online.models.generator import ServedGenerator
from mlctl.services.online.settings import ServerSettings
from tests.support.memory_catalog import MemoryCatalog
from tests.support.tiny_llm import (
    ANSWERS,
    SENTENCES,
    save_tiny_llm,
    tiny_llm_folder,
    tiny_llm_source,
    write_texts,
)

pytestmark = pytest.mark.slow

URI = "tiny"
RECIPES = ("gen-fp32", "gen-fp16", "gen-int4")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home whose cache all tests share, and in it texts.jsonl."""
    folder = tmp_path_factory.mktemp("generation")
    write_texts(folder / "texts.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(folder))
        yield folder


@pytest.fixture(scope="module")
def catalog() -> MemoryCatalog:
    return MemoryCatalog([tiny_llm_source()])


@pytest.fixture(scope="module")
def result(home: Path, catalog: MemoryCatalog) -> OptimizeResult:
    return optimize(URI, home / "texts.jsonl", catalog=catalog)


def judged(result: OptimizeResult) -> dict[str, Judged]:
    return {item.variant.recipe: item for item in result.judged}


def test_gen_fp32__greedy_decoding__gives_the_tokens_of_transformers(
    result: OptimizeResult,
) -> None:
    folder = judged(result)["gen-fp32"].variant.model
    assert folder is not None
    served = DecoderModel(folder, 64)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_llm_folder())
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(tiny_llm_folder())
    for prompt, answer in ANSWERS.items():
        ids = tokenizer.encode(prompt)
        expected = model.generate(torch.tensor([ids]), max_new_tokens=30, do_sample=False)
        found = served.generate(ids, 30)
        assert found == expected[0, len(ids) :].tolist()
        assert tokenizer.decode(found, skip_special_tokens=True) == answer


def test_optimize__a_language_model__judges_each_precision_by_perplexity(
    result: OptimizeResult,
) -> None:
    found = judged(result)
    assert tuple(found) == RECIPES
    sizes = []
    for item in found.values():
        measured = item.variant.measured
        assert measured is not None, item.reason
        assert measured.score is not None
        assert item.passed
        assert measured.parity.agreement == 1.0
        assert measured.score.value == pytest.approx(result.source_score, rel=0.05)
        assert measured.first_token_ms is not None
        assert measured.tokens_per_second is not None
        sizes.append(measured.size_bytes)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[1] < 0.6 * sizes[0]
    exact = found["gen-fp32"].variant.measured
    assert exact is not None
    assert exact.parity.relative_l2 < 1e-5


def test_optimize__a_language_model__seals_what_the_server_needs(
    result: OptimizeResult, catalog: MemoryCatalog
) -> None:
    bundle = verify(result.bundle.root, result.digest)
    manifest = bundle.manifest
    assert manifest.generation is not None
    assert manifest.generation.model_dump() == {
        "context_length": 256,
        "vocabulary_size": 345,
        "eos_ids": (1,),
        "chat_template": True,
    }
    assert manifest.signature == SIGNATURE
    assert manifest.evidence.metric == "perplexity"
    assert bundle.path(f"{GENERATION_FOLDER}/tokenizer.json").is_file()
    inputs, outputs = load_golden(bundle.path(GOLDEN_NAME))
    pairs = zip(inputs["prompt"], outputs["text"], strict=True)
    assert any((prompt + text).decode() in SENTENCES for prompt, text in pairs)
    report = json.loads(catalog.reports[0].files[REPORT_NAME])
    assert report["variants"][0]["measured"]["tokens_per_second"] > 0
    assert "tokens/s" in "".join(ET.fromstring(result.report).itertext())


def test_optimize__a_stricter_perplexity_limit__rejects_int4_with_the_value_and_the_limit(
    home: Path, catalog: MemoryCatalog, result: OptimizeResult
) -> None:
    goals = Goals(max_perplexity_increase=0.001)
    found = judged(optimize(URI, home / "texts.jsonl", catalog=catalog, goals=goals))
    assert result.source_score is not None
    limit = f"{0.001 * result.source_score:.4g}"
    assert found["gen-int4"].reason.startswith("perplexity increase 0.00")
    assert f"is over the limit {limit} (upper bound; " in found["gen-int4"].reason
    assert found["gen-fp32"].passed


def test_make_plan__a_language_model__lists_its_recipes_and_gate(
    home: Path, catalog: MemoryCatalog, result: OptimizeResult
) -> None:
    plan = make_plan(
        URI,
        home / "texts.jsonl",
        catalog=catalog,
        goals=Goals(),
        options=OptimizeOptions(),
        recipes=None,
    )
    assert plan.gates == (
        "perplexity may rise by at most 5% of the source's; "
        "then the best by latency, lossy ones if at least 10% faster"
    )
    assert {step.name for step in plan.steps if step.cached} >= {"export", "gen-int4: judge"}
    assert result.digest


@pytest.mark.parametrize(
    ("goals", "options", "recipes", "message"),
    [
        (Goals(max_accuracy_drop=0.1), OptimizeOptions(), None, "no accuracy to limit"),
        (Goals(), OptimizeOptions(metric="accuracy"), None, "which has no --metric"),
        (Goals(), OptimizeOptions(), ["fp32"], "the recipe fp32 does not fit"),
        (
            Goals(),
            OptimizeOptions(target=Target.CUDA),
            None,
            "no recipe builds models:/tiny/1 for cuda",
        ),
    ],
)
def test_optimize__an_option_that_has_no_meaning_for_a_language_model__is_rejected(
    home: Path,
    catalog: MemoryCatalog,
    goals: Goals,
    options: OptimizeOptions,
    recipes: list[str] | None,
    message: str,
) -> None:
    chosen = None if recipes is None else select(recipes, options.target)
    with pytest.raises(MlctlError, match=message) as caught:
        optimize(
            URI, home / "texts.jsonl", catalog=catalog, goals=goals, options=options, recipes=chosen
        )
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_optimize__weights_that_transformers_cannot_load__is_an_error_without_a_path(
    home: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in tiny_llm_folder().iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    (broken / "model.safetensors").write_bytes(b"\0" * 64)
    damaged = replace(tiny_llm_source(), model_path=broken, artifacts=broken, sha256="0" * 64)
    with pytest.raises(MlctlError, match="cannot be loaded") as caught:
        optimize(URI, home / "texts.jsonl", catalog=MemoryCatalog([damaged]))
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL
    assert str(tmp_path) not in caught.value.message


@pytest.mark.usefixtures("home")
async def test_optimize__answers_end_inside_a_character__the_server_starts(
    tmp_path: Path,
) -> None:
    sentence = "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3002" * 3
    save_tiny_llm(tmp_path / "model", [sentence])
    (tmp_path / "texts.jsonl").write_text(
        "".join(json.dumps({"text": sentence[start:]}) + "\n" for start in range(12))
    )
    source = replace(
        tiny_llm_source(),
        model_path=tmp_path / "model",
        artifacts=tmp_path / "model",
        sha256="1" * 64,
    )
    found = optimize(
        URI,
        tmp_path / "texts.jsonl",
        catalog=MemoryCatalog([source]),
        recipes=select(["gen-fp32"], Target.CPU),
    )
    _, outputs = load_golden(found.bundle.path(GOLDEN_NAME))
    model = ServedGenerator(found.bundle, ServerSettings(), registry=CollectorRegistry())
    await model.start()
    await model.stop()

    assert any(text.decode().endswith("\ufffd") for text in outputs["text"])


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for %}", "the chat template cannot be read"),
        ("{{ messages[5].content + 1 }}", "rejects a message of a user"),
    ],
)
def test_check_chat_template__fails__is_unsupported_with_the_reason(
    tmp_path: Path, template: str, message: str
) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tiny_llm_folder() / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text(template)

    with pytest.raises(MlctlError, match=f"llm is not usable: .*{message}") as caught:
        check_chat_template(tmp_path, "llm")
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL


def test_check_chat_template__renders_otherwise__is_unsupported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ChatTemplate, "render", lambda *_: "another prompt")
    with pytest.raises(MlctlError, match="its chat template renders otherwise in transformers"):
        check_chat_template(tiny_llm_folder(), "llm")


SMALL: Any = {
    "vocab_size": 345,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}


def write_random_model(folder: Path, architecture: Any, config: Any) -> Any:
    """Save an untrained model with the tokenizer of the trained one; return it."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = architecture(config).eval()
    for parameter in model.parameters():
        parameter.data.mul_(3)  # far from the scores of an untrained model, which are all near 0
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((tiny_llm_folder() / name).read_bytes())
    return model


def test_gen_fp32__a_sliding_window_beyond_the_cache__gives_the_tokens_of_transformers(
    tmp_path: Path,
) -> None:
    config = transformers.Gemma2Config(
        **SMALL, head_dim=16, query_pre_attn_scalar=16, sliding_window=4096
    )
    model = write_random_model(tmp_path, transformers.Gemma2ForCausalLM, config)
    build_engine_folder(tmp_path, tmp_path / "engine", "fp32")
    ids = [0, 5, 9]
    expected = model.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False)
    found = DecoderModel(tmp_path / "engine", 64).generate(ids, 8)
    assert found == expected[0, len(ids) :].tolist()


def test_optimize__an_architecture_that_the_builder_gets_wrong__fails_every_variant(
    home: Path, tmp_path: Path
) -> None:
    write_random_model(tmp_path, transformers.OlmoForCausalLM, transformers.OlmoConfig(**SMALL))
    olmo = replace(tiny_llm_source(), model_path=tmp_path, artifacts=tmp_path, sha256="1" * 64)
    with pytest.raises(NothingPassedError) as caught:
        optimize(URI, home / "texts.jsonl", catalog=MemoryCatalog([olmo]))
    assert len(caught.value.judged) == len(RECIPES)
    for item in caught.value.judged:
        assert "the builder's graph is not the source model: relative L2" in item.reason


def answers(losses: list[float], continuations: list[list[int]]) -> Answers:
    return Answers(np.array(losses), np.eye(2, 4, dtype=np.float32), np.array(continuations))


def test_compare_answers__known_losses_and_tokens__gives_perplexity_and_agreement() -> None:
    before = answers([2.0, 4.0], [[5, 6, 7, 1], [8, 1, -1, -1]])
    after = answers([3.0, 6.0], [[5, 6, 9, 1], [8, 1, -1, -1]])
    parity, score = compare_answers(before, after, np.array([2, 4]))
    assert score.reference == pytest.approx(np.e)
    assert score.value == pytest.approx(np.exp(1.5))
    assert score.drop.high >= score.drop.value > 0
    assert parity.agreement == pytest.approx(4 / 6)


def test_load_texts__each_kind_of_file__gives_the_same_texts(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = [f"text number {number}" for number in range(8)]
    lines = "\n\n".join(json.dumps({"body": text}) for text in texts)
    (tmp_path / "a.jsonl").write_text(lines)
    pq.write_table(pa.table({"body": texts, "id": range(8)}), tmp_path / "a.parquet")
    options = OptimizeOptions(columns={"text": ("body",)})
    for name in ("a.jsonl", "a.parquet"):
        found = load_texts(tmp_path / name, options.sampling, options.columns)
        assert [text.decode() for text in found.held_out.inputs["prompt"]] == texts


def test_load_texts__a_long_text__is_cut_at_white_space(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" ".join(["word"] * 2000))
    found = load_texts(tmp_path / "a.txt", OptimizeOptions().sampling, {})
    pieces = [text.decode() for text in found.held_out.inputs["prompt"]]
    assert " ".join(pieces).split() == ["word"] * 2000
    assert max(map(len, pieces)) <= 1000


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"one page", "1 texts of up to 1,000 characters .minimum 8."),
        ("a.txt", b"\xff", "a.txt is not UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n{"text": 1}', "line 2: it is not a JSON object with a text"),
        ("a.jsonl", b"[", "line 1"),
        ("a.csv", b"text", "neither an .npz nor a Parquet file"),
    ],
)
def test_load_texts__unusable_data__is_named(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(MlctlError, match=message) as caught:
        load_texts(tmp_path / name, OptimizeOptions().sampling, {})
    assert caught.value.code is ErrorCode.INVALID_INPUT
