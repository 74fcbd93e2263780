"""Register a plain ONNX file as a version of an MLflow model, with the signature of its graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlctl.bundle.tensors import DYNAMIC, Signature
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.text import printable
from mlctl.registry.catalog import ImportedModel
from mlctl.registry.mlmodel import check_signature
from mlctl.registry.names import ModelRef, parse_new_name
from mlctl.registry.onnx_file import (
    Shape,
    declare_shapes,
    fix_inputs,
    graph_signature,
    load_graph,
)
from mlctl.registry.publish import log_onnx


@dataclass(frozen=True, slots=True)
class OnnxImport:
    """A graph to register under `name`, with its signature."""

    name: str
    model: Any
    signature: Signature


def read_import(
    path: Path, name: str, shapes: Sequence[str] = (), constants: Sequence[str] = ()
) -> OnnxImport:
    """Read an ONNX file, or a folder with one, and describe its tensors.

    `shapes` are items NAME=-1,3,224,224 that replace shapes of the graph, `constants` items
    NAME=VALUE for inputs that are not sent with each request. INVALID_INPUT or
    UNSUPPORTED_MODEL with the reason.
    """
    new_name = parse_new_name(name)
    model = load_graph(path)
    fix_inputs(model, _items(constants, "--constant", "VALUE"))
    declare_shapes(model, _shapes(_items(shapes, "--signature", "-1,SIZE,...")))
    signature = graph_signature(model)
    try:
        check_signature(signature)
    except ValueError as error:
        raise MlctlError(ErrorCode.UNSUPPORTED_MODEL, f"{path.name}: {error}") from error
    return OnnxImport(new_name, model, signature)


def register(read: OnnxImport) -> ImportedModel:
    """Register the graph as the newest version of its name; needs MLflow to be configured."""
    import mlflow

    with mlflow.start_run(run_name=f"import {read.name}"):
        logged = log_onnx(read.model, read.signature, registered_name=read.name)
    version = str(logged.registered_model_version)
    return ImportedModel(
        read.name, version, str(ModelRef(read.name, version=version)), read.signature
    )


def _items(texts: Sequence[str], option: str, form: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.rpartition("=")
        if not (name and separator and value):
            raise _invalid(f"{option} {printable(text)}: write it as NAME={form}")
        found[name] = value
    return found


def _shapes(items: Mapping[str, str]) -> dict[str, Shape]:
    found: dict[str, Shape] = {}
    for name, text in items.items():
        try:
            shape = tuple(int(size) for size in text.strip("[]").split(","))
        except ValueError:
            shape = ()
        if not shape or min(shape) < DYNAMIC:
            raise _invalid(
                f"--signature {printable(name)}={printable(text)}: write the sizes as whole "
                "numbers, such as -1,3,224,224; -1 accepts any size"
            )
        found[name] = shape
    return found


def _invalid(message: str, hint: str | None = None) -> MlctlError:
    return MlctlError(ErrorCode.INVALID_INPUT, message, hint)
