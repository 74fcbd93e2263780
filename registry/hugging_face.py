"""Text models in Hugging Face's layout: check a folder of one, and register it.

Only configurations are read; neither the model nor any code of the folder is loaded.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.text import printable
from mlctl.registry.catalog import ImportedModel
from mlctl.registry.names import ModelRef, parse_new_name

TASK = "text-generation"
SIGNATURE = Signature(
    inputs=(TensorSpec(name="prompt", dtype=Datatype.BYTES, shape=(DYNAMIC,)),),
    outputs=(TensorSpec(name="text", dtype=Datatype.BYTES, shape=(DYNAMIC,)),),
)
"""A prompt, and the text that the model continues it with."""
ENCODER_SIGNATURE = Signature(
    inputs=(TensorSpec(name="text", dtype=Datatype.BYTES, shape=(DYNAMIC,)),),
    outputs=(TensorSpec(name="label", dtype=Datatype.BYTES, shape=(DYNAMIC,)),),
)
"""What an encoder's callers send; its real outputs follow from its task."""

CONFIG_NAME = "config.json"
QUANTIZATION = "quantization_config"
"""The entry of CONFIG_NAME that describes weights stored as integers."""
_TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
# MLflow's folders of the two parts.
_MODEL, _TOKENIZER = "model", "components/tokenizer"
# The tasks of transformers' pipelines by the name of the model's class. `BertModel` has no head;
# `GPT2LMHeadModel` has one.
_TASKS: Mapping[str, str] = {
    r"ForCausalLM$": TASK,
    r"ForSequenceClassification$": "text-classification",
    r"ForTokenClassification$": "token-classification",
    r"(?<!LMHead)(?<!DoubleHeads)Model$": "feature-extraction",
}
# Weights and configurations, but no pickles and no code.
_WEIGHTS = ".safetensors"
_DATA = (".jinja", ".json", ".model", ".txt")
_OF_THE_MODEL = (CONFIG_NAME, "generation_config.json", "model.safetensors.index.json")
_MAX_BYTES = 16 << 20
# Rows with one scale, of which ONNX Runtime has kernels.
_GROUP_SIZES = (16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class TextModelFolder:
    """A folder to register under `name`; `config` is the content of its config.json."""

    name: str
    path: Path
    config: dict[str, Any]

    @property
    def task(self) -> str:
        """The task of its model."""
        task = find_task(self.config)
        assert task is not None, "read_folder"
        return task


def read_folder(path: Path, name: str) -> TextModelFolder:
    """Check the folder of a text model; INVALID_INPUT for a name that is none."""
    config = check_folder(path, path.name, tuple(_TASKS.values()))
    return TextModelFolder(parse_new_name(name), path, config)


def find_task(config: Mapping[str, Any]) -> str | None:
    """Return the task of the model with this config.json; None for other kinds of models."""
    name = architecture(config)
    found = (task for pattern, task in _TASKS.items() if re.search(pattern, name))
    return None if config.get("is_encoder_decoder") else next(found, None)


def architecture(config: Mapping[str, Any]) -> str:
    """Return the name of the model's class, "none" without one."""
    return str((config.get("architectures") or ["none"])[0])


def is_text_model(path: Path) -> bool:
    """Whether `path` is a folder in Hugging Face's layout."""
    return (path / CONFIG_NAME).is_file()


def check_folder(folder: Path, label: str, tasks: tuple[str, ...] = (TASK,)) -> dict[str, Any]:
    """Return the configuration of the text model in `folder`, which is for one of `tasks`.

    UNSUPPORTED_MODEL names `label` and the reason: another kind of model, weights that are not
    safetensors or are quantized otherwise than as AWQ or GPTQ with 4 bits, no tokenizer.json, or
    code of its own (`auto_map`).
    """
    config = _read_object(folder / CONFIG_NAME, label)
    tokenizer = tokenizer_folder(folder)
    for part in (config, _read_object(tokenizer / _TOKENIZER_CONFIG_NAME, label)):
        if "auto_map" in part:
            raise _unsupported(label, "it needs code of its own (auto_map), which mlctl never runs")
    if find_task(config) not in tasks:
        kind = printable(architecture(config))
        raise _unsupported(label, f"it is {kind}, not a model for {', '.join(tasks)}")
    if not any(folder.glob(f"*{_WEIGHTS}")):
        raise _unsupported(label, "it has no weights as safetensors")
    if QUANTIZATION in config and (find_task(config) != TASK or not _is_int4(config[QUANTIZATION])):
        raise _unsupported(
            label,
            "its weights are quantized, and not as AWQ (gemm) or GPTQ (version 1) of a language "
            "model with 4 bits and a group_size of 16 to 256, all layers alike",
        )
    if not (tokenizer / "tokenizer.json").is_file():
        raise _unsupported(label, "its tokenizer has no tokenizer.json: save it as a fast one")
    return config


def tokenizer_folder(model: Path) -> Path:
    """Return the folder of the tokenizer: MLflow stores it beside the model's."""
    apart = model.parent / _TOKENIZER
    return apart if apart.is_dir() else model


def register_folder(folder: TextModelFolder) -> ImportedModel:
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
    signature = SIGNATURE if folder.task == TASK else ENCODER_SIGNATURE
    return ImportedModel(
        folder.name, version, str(ModelRef(folder.name, version=version)), signature
    )


class _Flavor:
    """What `Model.log` calls in place of the module mlflow.transformers."""

    @staticmethod
    def save_model(
        path: str, mlflow_model: Any, folder: TextModelFolder, signature: Any, **_: Any
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
            task=folder.task,
            instance_type=f"{folder.task.title().replace('-', '')}Pipeline",
            pipeline_model_type=architecture(folder.config),
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


def _is_int4(found: Any) -> bool:
    """Whether `found` (`quantization_config`) describes weights that the recipes can read."""
    match found:
        case {"group_size": size} if size not in _GROUP_SIZES:
            return False
        case {"quant_method": "awq", "bits": 4, "group_size": int(), **other}:
            return str(other.get("version", "gemm")).lower() == "gemm"
        case {"quant_method": "gptq", "bits": 4, "group_size": int(), **other}:
            return other.get("checkpoint_format", "gptq") == "gptq" and not other.get("dynamic")
    return False


def _unsupported(label: str, reason: str) -> MlctlError:
    return MlctlError(
        ErrorCode.UNSUPPORTED_MODEL,
        f"{printable(label)} is not usable: {reason}",
        "Save a model with model.save_pretrained(FOLDER) and tokenizer.save_pretrained(FOLDER).",
    )
