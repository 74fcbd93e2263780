"""A text classifier of the transformers library: its encoder, and its tokenizer as a transform.

The encoder is exported like any torch module. The tokenizer becomes the bundle's transform, which
needs the package `tokenizers` alone, so a server has neither torch nor transformers.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import TRANSFORM_NAME, TRANSFORM_REQUIREMENTS
from bundle.packages import install_hint, installed_version
from bundle.paths import resolve_inside
from bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from registry.catalog import SourceModel
from registry.names import printable
from registry.quiet import first_line, quiet

_HEAD = "ForSequenceClassification"
_TOKENIZER = "components/tokenizer"
_TEMPLATE = "transform.py.j2"
# Some encoders number positions from 2.
_RESERVED_POSITIONS = 2


@dataclass(frozen=True, slots=True)
class TextClassifier:
    """A registered classifier; `source.signature` has the encoder's tensors.

    `max_length` is in tokens: longer texts are cut off there.
    """

    source: SourceModel
    labels: tuple[str, ...]
    max_length: int
    pad_id: int

    def write_transform(self, folder: Path) -> None:
        """Write the transform: from `text` to `probabilities` and `label`."""
        from jinja2 import Template

        template = Template(
            (Path(__file__).parent / _TEMPLATE).read_text(), keep_trailing_newline=True
        )
        code = template.render(
            labels=repr(list(self.labels)), max_length=self.max_length, pad_id=self.pad_id
        )
        (folder / Path(TRANSFORM_NAME).name).write_text(code)
        (folder / Path(TRANSFORM_REQUIREMENTS).name).write_text(
            f"tokenizers=={installed_version('tokenizers')}\n"
        )
        tokenizer = resolve_inside(self.source.artifacts, f"{_TOKENIZER}/tokenizer.json")
        shutil.copyfile(tokenizer, folder / "tokenizer.json")


def read_text_classifier(source: SourceModel) -> TextClassifier:
    """Read the model's configuration; UNSUPPORTED_MODEL unless it classifies a text.

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
    kinds = config.get("architectures") or ["none"]
    if not str(kinds[0]).endswith(_HEAD):
        raise _unsupported(source, f"it is {printable(str(kinds[0]))}, not a model {_HEAD}")
    names = {int(number): str(name) for number, name in (config.get("id2label") or {}).items()}
    if config.get("problem_type") not in (None, "single_label_classification") or len(names) < 2:
        raise _unsupported(source, "it does not choose one of several labels for a text")
    positions = int(config.get("max_position_embeddings", 512))
    length = int(settings.get("model_max_length", positions + 1))
    if length > positions:  # the tokenizer does not know its model's limit
        length = positions - _RESERVED_POSITIONS
    signature = Signature(
        inputs=tuple(
            TensorSpec(name=name, dtype=Datatype.INT64, shape=(DYNAMIC, DYNAMIC))
            for name in ("input_ids", "attention_mask")
        ),
        outputs=(TensorSpec(name="logits", dtype=Datatype.FP32, shape=(DYNAMIC, len(names))),),
    )
    return TextClassifier(
        dataclasses.replace(source, signature=signature),
        tuple(names[number] for number in sorted(names)),
        max_length=length,
        pad_id=int(config.get("pad_token_id") or 0),
    )


def load_text_classifier(source: SourceModel) -> Any:
    """Return the torch module in evaluation mode, from safetensors and without code."""
    import transformers

    try:
        with quiet():
            module = transformers.AutoModelForSequenceClassification.from_pretrained(
                str(source.model_path),
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
            )
    except Exception as error:  # a foreign folder, and its readers have no common exception
        raise _unsupported(
            source, f"it cannot be loaded: {printable(first_line(error))}"
        ) from error
    return module.float().eval()


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
        "Log a text-classification pipeline with mlflow.transformers.log_model(pipeline, ...).",
    )
