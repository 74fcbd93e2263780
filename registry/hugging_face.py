"""Causal language models in Hugging Face's layout: check a folder of one, and register it.

Only configurations are read; neither the model nor any code of the folder is loaded.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bundle.errors import ErrorCode, MlctlError
from bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from registry.catalog import ImportedModel
from registry.names import ModelRef, parse_new_name, printable

TASK = "text-generation"
SIGNATURE = Signature(
    inputs=(TensorSpec(name="prompt", dtype=Datatype.BYTES, shape=(DYNAMIC,)),),
    outputs=(TensorSpec(name="text", dtype=Datatype.BYTES, shape=(DYNAMIC,)),),
)
"""A prompt, and the text that the model continues it with."""

_CONFIG_NAME = "config.json"
_TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
# MLflow's folders of the two parts.
_MODEL, _TOKENIZER = "model", "components/tokenizer"
_HEAD = "ForCausalLM"
# Weights and configurations, but no pickles and no code.
_WEIGHTS = ".safetensors"
_DATA = (".jinja", ".json", ".model", ".txt")
_OF_THE_MODEL = (_CONFIG_NAME, "generation_config.json", "model.safetensors.index.json")
_MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class LanguageModelFolder:
    """A folder to register under `name`; `config` is the content of its config.json."""

    name: str
    path: Path
    config: dict[str, Any]


def read_folder(path: Path, name: str) -> LanguageModelFolder:
    """Check the folder of a language model; INVALID_INPUT for a name that is none."""
    return LanguageModelFolder(parse_new_name(name), path, check_folder(path, path.name))


def is_language_model(path: Path) -> bool:
    """Whether `path` is a folder in Hugging Face's layout."""
    return (path / _CONFIG_NAME).is_file()


def check_folder(folder: Path, label: str) -> dict[str, Any]:
    """Return the configuration of the causal language model in `folder`.

    UNSUPPORTED_MODEL names `label` and the reason: another kind of model, weights that are not
    safetensors or are quantized, no tokenizer.json, or code of its own (`auto_map`).
    """
    config = _read_object(folder / _CONFIG_NAME, label)
    tokenizer = tokenizer_folder(folder)
    for part in (config, _read_object(tokenizer / _TOKENIZER_CONFIG_NAME, label)):
        if "auto_map" in part:
            raise _unsupported(label, "it needs code of its own (auto_map), which mlctl never runs")
    kinds = config.get("architectures") or ["none"]
    if not str(kinds[0]).endswith(_HEAD):
        raise _unsupported(label, f"it is {printable(str(kinds[0]))}, not a model {_HEAD}")
    if not any(folder.glob(f"*{_WEIGHTS}")):
        raise _unsupported(label, "it has no weights as safetensors")
    if "quantization_config" in config:
        reason = (
            "its weights are quantized: give the model they were made from, which judges variants"
        )
        raise _unsupported(label, reason)
    if not (tokenizer / "tokenizer.json").is_file():
        raise _unsupported(label, "its tokenizer has no tokenizer.json: save it as a fast one")
    return config


def tokenizer_folder(model: Path) -> Path:
    """Return the folder of the tokenizer: MLflow stores it beside the model's."""
    apart = model.parent / _TOKENIZER
    return apart if apart.is_dir() else model


def register_folder(folder: LanguageModelFolder) -> ImportedModel:
    """Register the folder as the newest version of its name; needs MLflow to be configured.

    The files are copied, and nothing is loaded: MLflow's own `log_model` reads all weights.
    """
    import mlflow
    from mlflow.models import Model, ModelSignature
    from mlflow.types import ColSpec, Schema

    text = Schema([ColSpec("string")])
    with mlflow.start_run(run_name=f"import {folder.name}"):
        logged = Model.log(
            artifact_path=None,
            name="model",
            flavor=_Flavor,
            registered_model_name=folder.name,
            signature=ModelSignature(text, text),
            folder=folder,
        )
    version = str(logged.registered_model_version)
    return ImportedModel(
        folder.name, version, str(ModelRef(folder.name, version=version)), SIGNATURE
    )


class _Flavor:
    """What `Model.log` calls in place of the module mlflow.transformers."""

    @staticmethod
    def save_model(
        path: str, mlflow_model: Any, folder: LanguageModelFolder, signature: Any, **_: Any
    ) -> None:
        root = Path(path)
        for part in (_MODEL, _TOKENIZER):
            (root / part).mkdir(parents=True)
        for file in sorted(folder.path.iterdir()):
            weights = file.suffix == _WEIGHTS
            if weights or (file.suffix in _DATA and file.is_file()):
                part = _MODEL if weights or file.name in _OF_THE_MODEL else _TOKENIZER
                shutil.copyfile(file, root / part / file.name)
        mlflow_model.signature = signature
        mlflow_model.add_flavor(
            "transformers",
            task=TASK,
            instance_type="TextGenerationPipeline",
            pipeline_model_type=folder.config["architectures"][0],
            model_binary=_MODEL,
            components=["tokenizer"],
            tokenizer_type="PreTrainedTokenizerFast",
            code=None,
        )
        mlflow_model.save(str(root / "MLmodel"))


def _read_object(path: Path, label: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text()) if path.stat().st_size <= _MAX_BYTES else None
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise _unsupported(label, f"its file {path.name} is missing or damaged")
    return found


def _unsupported(label: str, reason: str) -> MlctlError:
    return MlctlError(
        ErrorCode.UNSUPPORTED_MODEL,
        f"{printable(label)} is not usable: {reason}",
        "Save a language model with model.save_pretrained(FOLDER) and "
        "tokenizer.save_pretrained(FOLDER).",
    )
