"""Build the folder that onnxruntime-genai runs from a folder in Hugging Face's layout."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from bundle.manifest import Generation
from optimize.recipes.base import Precision
from registry.hugging_face import check_folder
from registry.quiet import first_line, quiet
from services.runtime.genai import import_genai

CONFIG_NAME = "genai_config.json"


def build_engine_folder(source: Path, target: Path, precision: Precision) -> None:
    """Write model.onnx, genai_config.json and the tokenizer's files of `source` into `target`.

    The model runs on the CPU. Nothing is downloaded and no code of `source` runs.
    UNSUPPORTED_MODEL if `source` is not safe to load; ValueError if the architecture cannot be
    built in this precision.
    """
    check_folder(source)
    import_genai()
    with quiet(), tempfile.TemporaryDirectory() as cache:
        # The library's builder is written as a program; these two functions are its steps.
        from onnxruntime_genai.models import builder

        try:
            request = (None, str(source), str(target), precision, "cpu", cache)
            # `hf_token=false` keeps the libraries from reading the user's token.
            options = builder.parse_extra_options(*request, ["hf_token=false", "hf_remote=false"])
            builder.create_model(*request, **options)
        except Exception as error:  # the libraries below have no common exception
            raise ValueError(f"{type(error).__name__}: {first_line(error)}") from error


def read_generation(folder: Path) -> Generation:
    """Return the manifest's entry for the engine's `folder`."""
    model: dict[str, Any] = json.loads((folder / CONFIG_NAME).read_text())["model"]
    eos = model["eos_token_id"]
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    return Generation(
        context_length=model["context_length"],
        vocabulary_size=model["vocab_size"],
        eos_ids=tuple(eos) if isinstance(eos, list) else (eos,),
        chat_template=(folder / "chat_template.jinja").is_file() or "chat_template" in settings,
    )
