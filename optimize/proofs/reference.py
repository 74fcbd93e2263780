"""The source model as the reference that all variants are compared with.

A reference runs the registered model as its author stored it and exports it to
ONNX. Nothing is loaded from a pickle unless the catalog allows it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mlctl.bundle.manifest import MODEL_NAME
from mlctl.bundle.tensors import Datatype, Signature
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.quiet import first_line, quiet
from mlctl.core.text import printable
from mlctl.optimize.data import Tensors
from mlctl.optimize.inputs.estimators import EstimatorReference, load_estimator
from mlctl.optimize.inputs.text.encoder import load_text_encoder
from mlctl.optimize.proofs.adapter import adapt
from mlctl.optimize.proofs.export import export_torch
from mlctl.optimize.proofs.source_checks import check_onnx_source, check_torch_source
from mlctl.optimize.recipes.base import save_graph
from mlctl.registry.catalog import ModelFormat, SourceModel
from mlctl.registry.onnx_file import make_plain, zipmap_classes, zipmaps
from mlctl.registry.tracking import pickle_loading
from mlctl.services.model.onnx_graph import read_graph
from mlctl.services.model.session import Session, load_onnx, open_session

_NOT_IN_TORCH = (Datatype.BYTES, Datatype.BF16)
_UNKNOWN_OPERATOR = re.compile(r"failed to resolve torch\.ops\.(\S+) to an operator")
_CLASS_HINT = (
    "Install the package that defines the model's class, or log the model again with "
    'serialization_format="pt2", which needs no code.'
)


class Reference(Protocol):
    """A source model that can be run and exported to ONNX."""

    def run(self, inputs: Tensors) -> dict[str, np.ndarray]:
        """Return the outputs by name; UNSUPPORTED_MODEL if the model raises on these inputs."""
        ...

    def export(self, directory: Path, example: Tensors) -> None:
        """Write model.onnx into `directory`; EXPORT_FAILED if that is impossible."""
        ...


def load_reference(source: SourceModel) -> Reference:
    """Load the registered model; PICKLE_REJECTED if its archive contains a pickle."""
    if source.format.is_estimator:
        return EstimatorReference(load_estimator(source))
    if source.format is ModelFormat.ONNX:
        import onnx

        read_graph(source.model_path)  # rejects data files outside of the model's folder
        model = onnx.load(str(source.model_path), load_external_data=False)
        check_onnx_source(source, model)
        return OnnxReference(source.model_path, model)
    if source.format is ModelFormat.TRANSFORMERS:
        return TorchReference(load_text_encoder(source), source.signature)
    specs = (*source.signature.inputs, *source.signature.outputs)
    if odd := [spec for spec in specs if spec.dtype in _NOT_IN_TORCH]:
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            f"tensor {odd[0].name!r} of {source.uri} has datatype {odd[0].dtype.value}",
        )
    module = _load_torch(source)
    check_torch_source(source, module)
    return TorchReference(module, source.signature)


class TorchReference:
    """A torch module, called with one tensor for each input of the signature."""

    def __init__(self, module: Any, signature: Signature) -> None:
        self._module = adapt(module, signature)
        self._signature = signature

    def run(self, inputs: Tensors) -> dict[str, np.ndarray]:
        import torch

        try:
            with torch.no_grad(), quiet():
                outputs = self._module(*self._tensors(inputs))
        except MlctlError:
            raise
        except Exception as error:  # the model's own code runs in there
            raise _does_not_run(inputs, error) from error
        names = [spec.name for spec in self._signature.outputs]
        return {name: _array(name, tensor) for name, tensor in zip(names, outputs, strict=True)}

    def export(self, directory: Path, example: Tensors) -> None:
        export_torch(self._module, self._tensors(example), self._signature, directory / MODEL_NAME)

    def _tensors(self, inputs: Tensors) -> tuple[Any, ...]:
        import torch

        # A copy: torch does not take read-only arrays, and the model may write to it.
        return tuple(torch.tensor(inputs[spec.name]) for spec in self._signature.inputs)


class OnnxReference:
    """A model that was registered as ONNX: it runs as it is, and is exported in a plain form.

    See `mlctl.registry.onnx_file.make_plain`. The scores of a ZipMap are read from its maps.
    """

    def __init__(self, path: Path, model: Any) -> None:
        self._path = path
        self._classes = {name: zipmap_classes(node) for name, node in zipmaps(model).items()}
        if self._classes:
            self._inner = load_onnx(path, [("CPUExecutionProvider", {})], 1)
        else:
            self._session: Session = open_session(path)

    def run(self, inputs: Tensors) -> dict[str, np.ndarray]:
        try:
            return self._run_maps(inputs) if self._classes else self._session.run(inputs)
        except Exception as error:  # onnxruntime has no public root for its exceptions
            raise _does_not_run(inputs, error) from error

    def export(self, directory: Path, example: Tensors) -> None:  # noqa: ARG002 - protocol
        import onnx

        model = onnx.load(str(self._path))
        make_plain(model)
        save_graph(model, directory)

    def _run_maps(self, inputs: Tensors) -> dict[str, np.ndarray]:
        """Run a graph whose outputs are lists of maps, which `Session.run` does not return."""
        names = [output.name for output in self._inner.get_outputs()]
        found = self._inner.run(names, {name: _texts(array) for name, array in inputs.items()})
        return {
            name: _scores(value, self._classes[name])
            if name in self._classes
            else _bytes(np.asarray(value))
            for name, value in zip(names, found, strict=True)
        }


def _scores(maps: list[dict[Any, float]], classes: Sequence[Any]) -> np.ndarray:
    return np.array([[row[each] for each in classes] for row in maps], np.float32)


def _texts(array: np.ndarray) -> np.ndarray:
    """Return text as ONNX Runtime takes it; numbers unchanged."""
    if array.dtype != object:
        return array
    return np.array([value.decode() for value in array.flat], object).reshape(array.shape)


def _bytes(array: np.ndarray) -> np.ndarray:
    """Return ONNX Runtime's text as bytes; numbers unchanged."""
    if array.dtype.kind not in "OU":
        return array
    return np.array([str(text).encode() for text in array.flat], object).reshape(array.shape)


def _array(name: str, tensor: Any) -> np.ndarray:
    try:
        array: np.ndarray = tensor.numpy(force=True)
    except (TypeError, RuntimeError) as error:  # bfloat16, or a sparse layout
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            f"output {name!r} of the model is not an array: {first_line(error)}",
            "Return it as a dense tensor of float32 or another type that NumPy has.",
        ) from error
    return array


def _load_torch(source: SourceModel) -> Any:
    import mlflow.pytorch
    import torch
    from mlflow.exceptions import MlflowException

    try:
        with quiet(), pickle_loading(allowed=source.pickle_allowed):
            module = mlflow.pytorch.load_model(str(source.model_path), device="cpu")
    except Exception as error:  # a foreign file, read by parsers that trust it
        if isinstance(error, MlflowException) and "pickle" in str(error):
            raise MlctlError(
                ErrorCode.PICKLE_REJECTED, f"{source.uri} holds a pickle inside of its archive"
            ) from error
        cause = _load_cause(error, source)
        raise _not_loaded(source, cause) from cause
    if isinstance(module, torch.jit.ScriptModule):
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            f"{source.uri} is a TorchScript module, which torch's exporter does not take",
            "Log the module it was scripted from, or its ONNX form with mlflow.onnx.log_model.",
        )
    # An exported program has its mode frozen into the graph, and `eval()` raises.
    return module if isinstance(module, torch.fx.GraphModule) else module.eval()


def _load_cause(error: Exception, source: SourceModel) -> BaseException:
    """Return the innermost error that made `error`.

    `torch.export.load` logs its cause, which is silenced, and raises another error. The
    archive is then read once more. MLflow has checked it for pickles by that time.
    """
    if "check the warnings above" not in str(error):
        return error
    from torch.export.pt2_archive._package import load_pt2

    cause: BaseException = error
    try:
        with quiet():
            load_pt2(str(next(source.artifacts.rglob("model.pt2"))))
    except Exception as logged:  # noqa: BLE001 - what `torch.export.load` logged
        cause = logged
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return cause


def _not_loaded(source: SourceModel, cause: BaseException) -> MlctlError:
    reason, hint = first_line(cause), None
    if isinstance(cause, ImportError | AttributeError):
        hint = _CLASS_HINT
    elif unknown := _UNKNOWN_OPERATOR.search(str(cause)):
        reason = f"the operator {unknown[1]} is not registered here"
        hint = "Write that operator with torch's own, or log the model in the ONNX flavor."
    return MlctlError(
        ErrorCode.UNSUPPORTED_MODEL, f"{source.uri} cannot be loaded: {printable(reason)}", hint
    )


def _does_not_run(inputs: Tensors, error: Exception) -> MlctlError:
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in inputs.items())
    return MlctlError(
        ErrorCode.UNSUPPORTED_MODEL,
        f"the source model does not run with inputs of shape {shapes}: {first_line(error)}",
        "Log it with a signature that has -1 only where it accepts any size, and with an "
        "input_example of at least two rows: one row fixes the batch size at 1.",
    )
