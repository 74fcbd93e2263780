"""Text models of the transformers library: the encoder, and its tokenizer as a transform.

The encoder is exported like any torch module. The tokenizer becomes the bundle's transform, which
needs the package `tokenizers` alone, so a server has neither torch nor transformers.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from mlctl.bundle.manifest import TRANSFORM_NAME, TRANSFORM_REQUIREMENTS
from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.packages import install_hint, installed_version
from mlctl.core.paths import resolve_inside
from mlctl.core.text import printable
from mlctl.optimize.inputs.loading import loading
from mlctl.registry.catalog import SourceModel
from mlctl.registry.hugging_face import architecture, find_task

_TOKENIZER = "components/tokenizer"
_TEMPLATE = "transform.py.j2"
_HINT = "Log such a pipeline with mlflow.transformers.log_model(pipeline, ...)."
# It compares a text with labels of each request, by a classifier of pairs.
_OTHER_TASK = "zero-shot-classification"
# Some encoders number positions from 2.
_RESERVED_POSITIONS = 2


class TextTask(StrEnum):
    """What a text model answers, by the name of transformers' pipeline."""

    CLASSIFICATION = "text-classification"
    TOKENS = "token-classification"
    FEATURES = "feature-extraction"


@dataclass(frozen=True, slots=True)
class TextEncoder:
    """A registered text model; `source.signature` has the encoder's tensors.

    `labels` are the names of its classes, `width` the numbers of a state; `max_length` is in
    tokens: longer texts are cut off there.
    """

    source: SourceModel
    task: TextTask
    labels: tuple[str, ...]
    width: int
    max_length: int
    pad_id: int

    def write_transform(self, folder: Path) -> None:
        """Write the transform: from `text` to the outputs of the task."""
        from jinja2 import Template

        template = Template(
            (Path(__file__).parent / _TEMPLATE).read_text(),
            keep_trailing_newline=True,
            trim_blocks=True,
        )
        code = template.render(
            task=self.task.value,
            labels=repr(list(self.labels)),
            width=self.width,
            max_length=self.max_length,
            pad_id=self.pad_id,
        )
        (folder / Path(TRANSFORM_NAME).name).write_text(code)
        (folder / Path(TRANSFORM_REQUIREMENTS).name).write_text(
            f"tokenizers=={installed_version('tokenizers')}\n"
        )
        tokenizer = resolve_inside(self.source.artifacts, f"{_TOKENIZER}/tokenizer.json")
        shutil.copyfile(tokenizer, folder / "tokenizer.json")


def read_text_encoder(source: SourceModel) -> TextEncoder:
    """Read the model's configuration; UNSUPPORTED_MODEL unless it is an encoder of a known task.

    RUNTIME_MISSING names the packages to install.
    """
    missing = [name for name in ("torch", "transformers") if not importlib.util.find_spec(name)]
    if missing:
        raise MlctlError(
            ErrorCode.RUNTIME_MISSING,
            f"transformers models need packages that are not installed: {', '.join(missing)}",
            install_hint("cpu,optimize,transformers"),
        )
    config = _read_json(source, source.model_path, "config.json")
    tokens = source.artifacts / _TOKENIZER
    settings = _read_json(source, tokens, "tokenizer_config.json")
    if not (tokens / "tokenizer.json").is_file():
        raise _unsupported(source, "its tokenizer has no tokenizer.json: log it with a fast one")
    task = _task(source, config)
    names = {int(number): str(name) for number, name in (config.get("id2label") or {}).items()}
    labels = tuple(names[number] for number in sorted(names))
    if task is TextTask.CLASSIFICATION and (
        config.get("problem_type") not in (None, "single_label_classification") or len(labels) < 2
    ):
        raise _unsupported(source, "it does not choose one of several labels for a text")
    positions = int(config.get("max_position_embeddings", 512))
    length = int(settings.get("model_max_length", positions + 1))
    if length > positions:  # the tokenizer does not know its model's limit
        length = positions - _RESERVED_POSITIONS
    width = int(config.get("hidden_size") or config.get("dim") or config.get("d_model") or 0)
    return TextEncoder(
        dataclasses.replace(source, signature=_signature(task, len(labels), width)),
        task,
        labels,
        width,
        max_length=length,
        pad_id=int(config.get("pad_token_id") or 0),
    )


def load_text_encoder(source: SourceModel) -> Any:
    """Return the torch module in evaluation mode, from safetensors and without code."""
    import transformers

    from mlctl.optimize.inputs.text.modules import MaskedLogits, MeanState

    task = read_text_encoder(source).task
    classes: Mapping[TextTask, Any] = {
        TextTask.CLASSIFICATION: transformers.AutoModelForSequenceClassification,
        TextTask.TOKENS: transformers.AutoModelForTokenClassification,
        TextTask.FEATURES: transformers.AutoModel,
    }
    with loading(source.uri, _HINT):
        module = classes[task].from_pretrained(
            str(source.model_path),
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
        )
    module = module.float().eval()
    match task:
        case TextTask.CLASSIFICATION:
            return module
        case TextTask.TOKENS:
            return MaskedLogits(module)
        case TextTask.FEATURES:
            return MeanState(module)


def _task(source: SourceModel, config: Mapping[str, Any]) -> TextTask:
    task = _declared_task(source) or find_task(config)
    if task is None or task not in set(TextTask):
        tasks, name = ", ".join(TextTask), printable(task or architecture(config))
        raise _unsupported(source, f"it is {name}, not an encoder for {tasks}")
    return TextTask(task)


def _declared_task(source: SourceModel) -> str | None:
    """Return the pipeline's task if its class of model has another one as well."""
    path = source.artifacts / "MLmodel"
    text = path.read_text() if path.is_file() else ""
    return _OTHER_TASK if re.search(rf"^ *task: {_OTHER_TASK}$", text, re.MULTILINE) else None


def _signature(task: TextTask, labels: int, width: int) -> Signature:
    tokens = (DYNAMIC, DYNAMIC)
    inputs: dict[str, tuple[int, ...]] = {"input_ids": tokens, "attention_mask": tokens}
    spans = TensorSpec(name="spans", dtype=Datatype.INT64, shape=(*tokens, 2))
    outputs: tuple[TensorSpec, ...]
    match task:
        case TextTask.CLASSIFICATION:
            outputs = (_real("logits", DYNAMIC, labels),)
        case TextTask.TOKENS:
            inputs["positions"] = spans.shape
            outputs = (_real("logits", *tokens, labels), spans)
        case TextTask.FEATURES:
            outputs = (_real("embedding", DYNAMIC, width),)
    return Signature(
        inputs=tuple(
            TensorSpec(name=name, dtype=Datatype.INT64, shape=shape)
            for name, shape in inputs.items()
        ),
        outputs=outputs,
    )


def _real(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name=name, dtype=Datatype.FP32, shape=shape)


def _read_json(source: SourceModel, folder: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads((folder / name).read_text())
    except (OSError, ValueError) as error:
        raise _unsupported(source, f"its file {name} is missing or damaged") from error
    if not isinstance(found, dict):
        raise _unsupported(source, f"its file {name} is not an object")
    return found


def _unsupported(source: SourceModel, reason: str) -> MlctlError:
    return MlctlError(
        ErrorCode.UNSUPPORTED_MODEL,
        f"{source.uri}: {reason}",
        _HINT,
    )
