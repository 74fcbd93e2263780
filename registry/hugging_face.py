"""Check a folder in Hugging Face's layout that holds a causal language model.

Only files are read; neither the model nor any code of the folder is loaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bundle.errors import ErrorCode, MlctlError
from bundle.paths import resolve_inside
from registry.names import printable

CONFIG_NAME = "config.json"
_HEAD = "ForCausalLM"
_TOKENIZER_NAMES = ("tokenizer.json", "tokenizer_config.json")
_MAX_BYTES = 16 << 20
_HINT = "Save it with model.save_pretrained(FOLDER) and tokenizer.save_pretrained(FOLDER)."


def check_folder(folder: Path) -> dict[str, Any]:
    """Return the configuration of the language model in `folder`.

    UNSUPPORTED_MODEL for another kind of model, weights that are not safetensors, a tokenizer
    without tokenizer.json, and a configuration that names its own code (`auto_map`).
    """
    config = read_config(folder, CONFIG_NAME)
    kinds = config.get("architectures") or ["none"]
    if not str(kinds[0]).endswith(_HEAD):
        raise _unsupported(f"it is {printable(str(kinds[0]))}, not a model {_HEAD}")
    if not any(folder.glob("*.safetensors")):
        raise _unsupported("it has no weights as safetensors")
    for name in _TOKENIZER_NAMES:
        if not (folder / name).is_file():
            raise _unsupported(f"it has no file {name}: save its fast tokenizer beside it")
    for name in (CONFIG_NAME, "tokenizer_config.json"):
        if "auto_map" in read_config(folder, name):
            raise _unsupported(
                f"its {name} has an auto_map: the model needs code of its own, which mlctl never "
                "runs"
            )
    return config


def read_config(folder: Path, name: str) -> dict[str, Any]:
    """Return the JSON object in the file `name`; UNSUPPORTED_MODEL if there is none."""
    path = resolve_inside(folder, name)
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise _unsupported(f"its file {name} is larger than {_MAX_BYTES >> 20} MiB")
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise _unsupported(f"its file {name} is missing or damaged") from error
    if not isinstance(found, dict):
        raise _unsupported(f"its file {name} is not an object")
    return found


def _unsupported(reason: str) -> MlctlError:
    return MlctlError(
        ErrorCode.UNSUPPORTED_MODEL, f"the language model is not usable: {reason}", _HINT
    )
