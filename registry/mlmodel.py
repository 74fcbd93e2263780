"""Read a downloaded MLflow model directory: its format, its signature, the model's path.

The model itself is not loaded, and paths in the MLmodel file are resolved
inside the directory only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bundle.errors import ErrorCode, MlctlError
from bundle.paths import resolve_inside
from bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from registry.catalog import ModelFormat
from registry.names import printable
from registry.quiet import first_line

_PT2_FILE = "model.pt2"


@dataclass(frozen=True, slots=True)
class StoredModel:
    """The content of an MLmodel file; `path` is the file or folder to load."""

    format: ModelFormat
    path: Path
    signature: Signature


def read_mlmodel(root: Path, label: str) -> StoredModel:
    """Describe the MLflow model in `root`; UNSUPPORTED_MODEL names `label` and the reason."""
    from mlflow.models import Model

    try:
        model = Model.load(str(root))
    except Exception as error:  # an untrusted file, and the parser does not expect that
        raise _unsupported(
            label, f"its MLmodel file cannot be read ({printable(first_line(error))})"
        ) from error
    flavor, path = _flavor(root, model.flavors, label)
    return StoredModel(flavor, path, _signature(model.signature, label))


def _flavor(root: Path, flavors: Mapping[str, Any], label: str) -> tuple[ModelFormat, Path]:
    if "onnx" in flavors:
        config = _config(flavors["onnx"], label)
        return ModelFormat.ONNX, resolve_inside(root, str(config.get("data")))
    if "pytorch" not in flavors:
        found = ", ".join(sorted(set(flavors) - {"python_function"})) or "none"
        raise _unsupported(label, f"its flavor is {found}, not pytorch or onnx")
    config = _config(flavors["pytorch"], label)
    archive = resolve_inside(root, f"{config.get('model_data')}/{_PT2_FILE}")
    # Code stored with a model would run on loading, as a pickle does.
    safe = archive.is_file() and not config.get("code")
    return (ModelFormat.PT2 if safe else ModelFormat.PICKLE), root


def _config(value: Any, label: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _unsupported(label, "its MLmodel file describes no flavor")
    return value


def _signature(signature: Any, label: str) -> Signature:
    if signature is None or signature.inputs is None or signature.outputs is None:
        raise _unsupported(label, "it has no signature with inputs and outputs")
    try:
        inputs, outputs = _specs(signature.inputs, "input"), _specs(signature.outputs, "output")
        return _checked(Signature(inputs=inputs, outputs=outputs))
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"]
        raise _unsupported(label, f"its signature is not usable: {reason}") from error
    except ValueError as error:
        raise _unsupported(label, f"its signature is not usable: {error}") from error


def _specs(schema: Any, default: str) -> tuple[TensorSpec, ...]:
    if not schema.is_tensor_spec():
        raise ValueError(f"the {default}s are table columns, not tensors")
    # MLflow allows a tensor without a name only if it is the only one.
    return tuple(
        TensorSpec(
            name=default if spec.name is None else spec.name,
            dtype=Datatype.from_numpy_name(spec.type.name),
            shape=tuple(spec.shape),
        )
        for spec in schema.inputs
    )


def _checked(signature: Signature) -> Signature:
    """Reject a signature that no graph or server of rows can have; ValueError."""
    specs = (*signature.inputs, *signature.outputs)
    if both := {spec.name for spec in signature.inputs} & {spec.name for spec in signature.outputs}:
        raise ValueError(
            f"an input and an output are both named {min(both)!r}, which no graph can have"
        )
    for spec in specs:
        if spec.shape[:1] != (DYNAMIC,):
            raise ValueError(
                f"tensor {spec.name!r} has shape {list(spec.shape)}; its first dimension must be "
                "the batch: -1"
            )
    return signature


def _unsupported(label: str, reason: str) -> MlctlError:
    return MlctlError(ErrorCode.UNSUPPORTED_MODEL, f"{label} is not usable: {reason}")
