"""Causal language models as folders for onnxruntime-genai, made by its own model builder.

The folder has model.onnx with its data, genai_config.json and the tokenizer's files.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bundle.manifest import Generation
from optimize.recipes.base import Details, Precision, Target, Workbench
from registry.hugging_face import tokenizer_folder
from registry.quiet import quiet
from services.runtime.genai import import_genai

CONFIG_NAME = "genai_config.json"
_TEMPLATE_NAME = "chat_template.jinja"
_SETTINGS = MappingProxyType(
    {
        "fp32": "weights fp32",
        "fp16": "weights fp16; on CPUs ONNX Runtime computes most of it in fp32",
        "int4": "matrix weights int4, in blocks of 32",
    }
)


@dataclass(frozen=True, slots=True)
class GenerationRecipe:
    """Builds the folder from a checked folder in Hugging Face's layout, for the CPU."""

    precision: Precision
    targets: frozenset[Target] = frozenset({Target.CPU})
    version: int = 1
    tuned: bool = False

    @property
    def name(self) -> str:
        return f"gen-{self.precision}"

    def build(self, source: Path, directory: Path, bench: Workbench) -> Details:  # noqa: ARG002
        build_engine_folder(source, directory, self.precision)
        return Details({"arithmetic": _SETTINGS[self.precision]})


def build_engine_folder(source: Path, target: Path, precision: Precision) -> None:
    """Write the engine's files of the model in `source` into `target`.

    Nothing is downloaded and no code of `source` runs. Raises what the library raises for an
    architecture that it cannot build.
    """
    import_genai()
    with quiet(), tempfile.TemporaryDirectory() as scratch:
        # The library's program in two steps; it prints, and its cache stays empty offline.
        from onnxruntime_genai.models import builder

        whole = Path(scratch, "model")
        whole.mkdir()
        for file in (*tokenizer_folder(source).iterdir(), *source.iterdir()):
            if not (whole / file.name).exists():
                (whole / file.name).symlink_to(file.absolute())
        request = (None, str(whole), str(target), precision, "cpu", str(Path(scratch, "cache")))
        options = builder.parse_extra_options(*request, ["hf_token=false", "hf_remote=false"])
        builder.create_model(*request, **options)


def read_generation(folder: Path) -> Generation:
    """Return the manifest's entry for the engine's `folder`."""
    model: dict[str, Any] = json.loads((folder / CONFIG_NAME).read_text())["model"]
    eos = model["eos_token_id"]
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    return Generation(
        context_length=model["context_length"],
        vocabulary_size=model["vocab_size"],
        eos_ids=tuple(eos) if isinstance(eos, list) else (eos,),
        chat_template=(folder / _TEMPLATE_NAME).is_file() or "chat_template" in settings,
    )
