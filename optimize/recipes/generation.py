"""Causal language models as folders for onnxruntime-genai, made by its own model builder.

The folder has model.onnx with its data, genai_config.json and the tokenizer's files.
"""

from __future__ import annotations

import importlib
import json
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mlctl.bundle.manifest import MODEL_NAME, Generation
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.packages import install_hint, installed_version
from mlctl.core.quiet import first_line, quiet
from mlctl.optimize.recipes.base import Details, Precision, Target, Workbench, save_graph
from mlctl.optimize.recipes.half import to_half
from mlctl.optimize.recipes.int4_checkpoint import is_quantized, model_folder, sort_rows
from mlctl.services.generate.chat_template import has_chat_template

CONFIG_NAME = "genai_config.json"
# Values of a weight that is not worth a cast.
_SMALL = 1024
_SETTINGS = MappingProxyType(
    {
        "fp32": "weights fp32",
        "fp16": "weights stored as fp16, arithmetic fp32: half the file, and no faster",
        "int4": "matrix weights int4, in blocks of 32",
    }
)
_STORED = "matrix weights int4, as the checkpoint has them"


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
        stored = self.precision == "int4" and is_quantized(source)
        return Details({"arithmetic": _STORED if stored else _SETTINGS[self.precision]})


def build_engine_folder(source: Path, target: Path, precision: Precision) -> None:
    """Write the engine's files of the model in `source` into `target`.

    Nothing is downloaded and no code of `source` runs. ValueError for an architecture that the
    builder does not know.
    """
    if installed_version("onnxruntime-genai") is None:
        raise MlctlError(
            ErrorCode.RUNTIME_MISSING,
            "language models are built with onnxruntime-genai, which is not installed",
            install_hint("cpu,optimize,transformers,generate"),
        )
    with (
        quiet(),
        tempfile.TemporaryDirectory() as cache,
        model_folder(source, dequantize=precision != "int4") as whole,
    ):
        library: Any = importlib.import_module("onnxruntime_genai")
        library.disable_telemetry_events()
        # The library's program in two steps; it prints, and its cache stays empty offline.
        builder: Any = importlib.import_module("onnxruntime_genai.models.builder")
        # The library's fp16 graphs have operators that ONNX Runtime does not run on CPUs.
        built = "fp32" if precision == "fp16" else precision
        request = (None, str(whole), str(target), built, "cpu", cache)
        try:
            options = builder.parse_extra_options(*request, ["hf_token=false", "hf_remote=false"])
            builder.create_model(*request, **options)
        except OSError:
            raise
        except Exception as error:
            raise ValueError(
                "onnxruntime-genai's builder does not build this architecture "
                f"({type(error).__name__}: {first_line(error)})"
            ) from error
    if precision == "fp16":
        _store_as_fp16(target)
    elif is_quantized(source) and precision == "int4":
        sort_rows(target)


def _store_as_fp16(folder: Path) -> None:
    """Store the graph's large weights as fp16, each with a cast that ONNX Runtime folds."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = onnx.load(str(folder / MODEL_NAME))
    graph = model.graph
    casts = []
    for weight in graph.initializer:
        if weight.data_type != TensorProto.FLOAT or math.prod(weight.dims) < _SMALL:
            continue
        name, array = weight.name, numpy_helper.to_array(weight)
        weight.CopyFrom(numpy_helper.from_array(to_half(array), f"{name}_fp16"))
        casts.append(helper.make_node("Cast", [weight.name], [name], to=TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    save_graph(model, folder)


def read_generation(folder: Path) -> Generation:
    """Return the manifest's entry for the engine's `folder`."""
    model: dict[str, Any] = json.loads((folder / CONFIG_NAME).read_text())["model"]
    eos = model["eos_token_id"]
    return Generation(
        context_length=model["context_length"],
        vocabulary_size=model["vocab_size"],
        eos_ids=tuple(eos) if isinstance(eos, list) else (eos,),
        chat_template=has_chat_template(folder),
    )
