"""Language models into the registry and out of it, and the folders that are rejected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.registry.catalog import PublishReport
from mlctl.registry.hugging_face import SIGNATURE, read_folder, tokenizer_folder
from mlctl.registry.mlflow_catalog import MlflowCatalog
from tests.support.tiny_llm import make_tiny_llm_bundle, tiny_llm_folder


def write_folder(folder: Path, **config: Any) -> Path:
    """A folder whose files have the right names; its weights are none."""
    folder.mkdir()
    document = {"architectures": ["LlamaForCausalLM"], **config}
    (folder / "config.json").write_text(json.dumps(document))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def quantized(method: str, **other: Any) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": method, "bits": 4, "group_size": 128, **other}}


@pytest.mark.parametrize("config", [{}, quantized("awq", version="GEMM"), quantized("gptq")])
def test_read_folder__a_language_model__is_read(tmp_path: Path, config: dict[str, Any]) -> None:
    found = read_folder(write_folder(tmp_path / "good", **config), "llama")
    assert (found.name, found.task) == ("llama", "text-generation")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"auto_map": {"AutoModel": "own.Model"}}, "needs code of its own .auto_map."),
        ({"architectures": ["BertForMaskedLM"]}, "it is BertForMaskedLM, not a model for text-gen"),
        ({"architectures": ["T5Model"], "is_encoder_decoder": True}, "it is T5Model, not"),
        ({"architectures": None}, "it is none, not"),
        *(
            (config, "quantized, and not as AWQ .gemm. or GPTQ .version 1. of a language model wi")
            for config in (
                {"quantization_config": None},
                {"quantization_config": {"quant_method": "gptq"}},
                quantized("bitsandbytes"),
                quantized("gptq", bits=3),
                quantized("gptq", checkpoint_format="gptq_v2"),
                quantized("gptq", dynamic={"-:.*": {}}),
                quantized("awq", version="gemv"),
                quantized("awq", group_size=None),
                quantized("gptq", group_size=-1),
                {**quantized("awq"), "architectures": ["BertModel"]},
            )
        ),
    ],
)
def test_read_folder__a_model_that_cannot_be_built__is_rejected(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(MlctlError, match=message) as caught:
        read_folder(write_folder(tmp_path / "bad", **config), "llama")
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL
    assert caught.value.message.startswith("bad is not usable")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.safetensors", None, "no weights as safetensors"),
        ("tokenizer.json", None, "no tokenizer.json"),
        ("tokenizer_config.json", None, "tokenizer_config.json is missing or damaged"),
        ("tokenizer_config.json", '{"auto_map": {}}', "auto_map"),
        ("config.json", "[", "config.json is missing or damaged"),
        ("config.json", "[]", "config.json is missing or damaged"),
    ],
)
def test_read_folder__a_wrong_file__is_rejected(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    folder = write_folder(tmp_path / "bad")
    (folder / "pytorch_model.bin").write_bytes(b"")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(MlctlError, match=message) as caught:
        read_folder(folder, "llama")
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL


def test_read_folder__a_name_with_a_version__is_rejected(tmp_path: Path) -> None:
    with pytest.raises(MlctlError, match="without version and alias"):
        read_folder(write_folder(tmp_path / "good"), "llama/3")


@pytest.mark.slow
def test_import_text_model__a_language_model_then_publish__keeps_weights_and_bundle(
    catalog: MlflowCatalog, tmp_path: Path
) -> None:
    folder = tiny_llm_folder()
    (tmp_path / "copy").mkdir()
    for file in folder.iterdir():
        (tmp_path / "copy" / file.name).symlink_to(file)
    (tmp_path / "copy" / "pytorch_model.bin").write_bytes(b"a pickle")
    (tmp_path / "copy" / "modeling.py").write_text("raise SystemExit")

    imported = catalog.import_text_model(read_folder(tmp_path / "copy", "llama"))
    source = catalog.resolve("llama")

    assert (imported.uri, imported.signature) == (source.uri, SIGNATURE)
    assert source.generates
    assert not source.pickle_allowed
    stored = (*source.model_path.iterdir(), *tokenizer_folder(source.model_path).iterdir())
    assert {file.name: file.read_bytes() for file in stored} == {
        file.name: file.read_bytes() for file in folder.iterdir()
    }
    bundle = make_tiny_llm_bundle(tmp_path / "bundle", name="llama")
    report = PublishReport("chosen", metrics={"gen-fp32/score": 1.2})
    published = catalog.publish(bundle, source, report)
    assert catalog.publish(bundle, source, report) == published
    assert catalog.find_optimized("llama") == published
    fetched = catalog.fetch_bundle(published, tmp_path / "fetched")
    assert fetched.manifest == bundle.manifest


@pytest.mark.slow
def test_resolve__a_pipeline_that_mlflow_logged__is_a_language_model(
    catalog: MlflowCatalog,
) -> None:
    import mlflow
    import transformers

    from mlctl.core.quiet import quiet
    from mlctl.registry.tracking import configure_tracking

    configure_tracking()
    folder = str(tiny_llm_folder())
    parts = {
        "model": transformers.AutoModelForCausalLM.from_pretrained(folder),
        "tokenizer": transformers.AutoTokenizer.from_pretrained(folder),
    }
    with quiet(), mlflow.start_run():
        mlflow.transformers.log_model(
            parts,
            name="model",
            task="text-generation",
            registered_model_name="logged",
            pip_requirements=["transformers"],
        )
    source = catalog.resolve("logged")
    assert source.generates
    assert (tokenizer_folder(source.model_path) / "tokenizer.json").is_file()
