"""The source model, as the thing that all variants are compared with.

A reference runs the registered model as its author stored it and writes it out as
ONNX. Nothing is loaded from a pickle unless the catalog was told to allow it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import MODEL_NAME
from bundle.tensors import Datatype, Signature
from optimize.data import Tensors, row_count
from optimize.export import export_torch
from optimize.recipes.base import save_graph
from registry.catalog import Flavor, SourceModel
from registry.quiet import first_line, quiet
from registry.tracking import PICKLE_VARIABLE
from services.session import Session, open_session

_NOT_IN_TORCH = (Datatype.BYTES, Datatype.BF16)


class Reference(Protocol):
    """A source model: it answers like the original, and becomes an ONNX file."""

    def run(self, inputs: Tensors) -> dict[str, np.ndarray]: ...

    def export(self, directory: Path, example: Tensors) -> None:
        """Write model.onnx into `directory`; EXPORT_FAILED says why it cannot be done."""
        ...


def load_reference(source: SourceModel) -> Reference:
    """Load the registered model; PICKLE_REFUSED if its archive hides a pickle after all."""
    if source.flavor is Flavor.ONNX:
        return OnnxReference(source.model_path)
    specs = (*source.signature.inputs, *source.signature.outputs)
    if odd := [spec for spec in specs if spec.dtype in _NOT_IN_TORCH]:
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            f"tensor {odd[0].name!r} of {source.uri} has datatype {odd[0].dtype.value}",
        )
    return TorchReference(_load_torch(source), source.signature)


class TorchReference:
    """A torch module, called with one positional tensor for each input of the signature."""

    def __init__(self, module: Any, signature: Signature) -> None:
        self._module = module
        self._signature = signature

    def run(self, inputs: Tensors) -> dict[str, np.ndarray]:
        import torch

        try:
            with torch.no_grad(), quiet():
                outputs = self._module(*self._tensors(inputs))
        except Exception as error:
            rows = row_count(inputs)
            raise MlctlError(
                ErrorCode.UNSUPPORTED_MODEL,
                f"the source model does not run with {rows} rows: {first_line(error)}",
                "Log it with a batch dimension of -1 that it really accepts in any size.",
            ) from error
        return name_outputs(outputs, [spec.name for spec in self._signature.outputs])

    def export(self, directory: Path, example: Tensors) -> None:
        export_torch(self._module, self._tensors(example), self._signature, directory / MODEL_NAME)

    def _tensors(self, inputs: Tensors) -> tuple[Any, ...]:
        import torch

        # A copy: torch does not take read-only arrays, and the model may write to it.
        return tuple(torch.tensor(inputs[spec.name]) for spec in self._signature.inputs)


class OnnxReference:
    """A model that was registered as ONNX: it runs as it is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._session: Session = open_session(path)

    def run(self, inputs: Tensors) -> dict[str, np.ndarray]:
        return self._session.run(inputs)

    def export(self, directory: Path, example: Tensors) -> None:  # noqa: ARG002 - protocol
        import onnx

        save_graph(onnx.load(str(self._path)), directory)


def name_outputs(outputs: Any, names: list[str]) -> dict[str, np.ndarray]:
    """What a module returned (tensor, sequence or mapping) as arrays under the signature's names.

    A mapping with exactly these keys is taken by key, all else in order.
    """
    if isinstance(outputs, Mapping):
        values = [outputs[name] for name in names if name in outputs]
        values = values if len(values) == len(outputs) else list(outputs.values())
    else:
        values = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    if len(values) != len(names):
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            f"the model returns {len(values)} tensors, its signature names {len(names)} outputs",
        )
    return {name: value.numpy(force=True) for name, value in zip(names, values, strict=True)}


def _load_torch(source: SourceModel) -> Any:
    import mlflow.pytorch
    import torch
    from mlflow.exceptions import MlflowException

    try:
        with quiet(), _pickle_loading(source.pickle_allowed):
            module = mlflow.pytorch.load_model(str(source.model_path), device="cpu")
    except MlflowException as error:
        if "pickle" not in str(error):
            raise
        raise MlctlError(
            ErrorCode.PICKLE_REFUSED, f"{source.uri} holds a pickle inside of its archive"
        ) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL, f"{source.uri} cannot be loaded: {first_line(error)}"
        ) from error
    # An exported program has its mode frozen into the graph, and refuses to be asked.
    return module if isinstance(module, torch.fx.GraphModule) else module.eval()


@contextlib.contextmanager
def _pickle_loading(allowed: bool) -> Iterator[None]:
    """Set MLflow's own guard, whatever the environment says, while a model is loaded."""
    before = os.environ.get(PICKLE_VARIABLE)
    os.environ[PICKLE_VARIABLE] = "true" if allowed else "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[PICKLE_VARIABLE]
        else:
            os.environ[PICKLE_VARIABLE] = before
