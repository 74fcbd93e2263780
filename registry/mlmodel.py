"""Read a downloaded MLflow model directory: its format, its signature, the model's path.

The model itself is not loaded, and paths in the MLmodel file are resolved
inside the directory only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.paths import resolve_inside
from mlctl.core.quiet import first_line
from mlctl.core.text import printable
from mlctl.registry import hugging_face
from mlctl.registry.catalog import ModelFormat

_PT2_FILE = "model.pt2"
_SKOPS = "skops"
# Loaders of these files read data and run no code of the file.
_XGBOOST_FILES = (".json", ".ubj")
_LIGHTGBM_FILES = (".lgb", ".skops")

_SIGNATURE_HINT = "Log it with input_example=ROWS, or signature=infer_signature(ROWS, ANSWERS)."

# What optimize reads from the estimator itself; see `SourceModel`.
_ESTIMATOR_OUTPUT = TensorSpec(name="prediction", dtype=Datatype.FP64, shape=(DYNAMIC,))

_COLUMN_TYPES = MappingProxyType(
    {
        "boolean": Datatype.BOOL,
        "integer": Datatype.INT32,
        "long": Datatype.INT64,
        "float": Datatype.FP32,
        "double": Datatype.FP64,
        "string": Datatype.BYTES,
    }
)


@dataclass(frozen=True, slots=True)
class StoredModel:
    """The content of an MLmodel file; `path` is the file or folder to load.

    `pickled` says that loading it may run code. See `SourceModel` for the other fields.
    """

    format: ModelFormat
    path: Path
    signature: Signature
    pickled: bool = False
    columns: bool = False
    optional: frozenset[str] = frozenset()
    generates: bool = False


def read_mlmodel(root: Path, label: str) -> StoredModel:
    """Describe the MLflow model in `root`; UNSUPPORTED_MODEL names `label` and the reason."""
    from mlflow.models import Model

    try:
        model = Model.load(str(root))
    except Exception as error:  # an untrusted file, and the parser does not expect that
        raise _unsupported(
            label, f"its MLmodel file cannot be read ({printable(first_line(error))})"
        ) from error
    flavor, path, pickled = _flavor(root, model.flavors, label)
    if flavor is ModelFormat.TRANSFORMERS:  # its inputs follow from the tokenizer
        if model.flavors[flavor.value].get("task") == hugging_face.TASK:
            hugging_face.check_folder(path, label)
            return StoredModel(flavor, path, hugging_face.SIGNATURE, pickled, generates=True)
        return StoredModel(flavor, path, hugging_face.ENCODER_SIGNATURE, pickled)
    signature = model.signature
    if signature is None or signature.inputs is None:
        raise _unsupported(label, "it has no signature with inputs", _SIGNATURE_HINT)
    columns = not signature.inputs.is_tensor_spec()
    return StoredModel(
        format=flavor,
        path=path,
        signature=_signature(signature, flavor, label),
        pickled=pickled,
        columns=columns,
        optional=_optional(signature.inputs) if columns else frozenset(),
    )


def _flavor(root: Path, flavors: Mapping[str, Any], label: str) -> tuple[ModelFormat, Path, bool]:
    """Return the format, the path to load, and whether loading it may run code."""
    found = next((each for each in ModelFormat if each.value in flavors), None)
    if found is None:
        names = ", ".join(sorted(set(flavors) - {"python_function"})) or "none"
        supported = ", ".join(each.value for each in ModelFormat)
        raise _unsupported(label, f"its flavor is {names}, not one of {supported}")
    config = _config(flavors[found.value], label)
    if found is ModelFormat.ONNX:
        return found, resolve_inside(root, str(config.get("data"))), False
    if found is ModelFormat.PYTORCH:
        archive = resolve_inside(root, f"{config.get('model_data')}/{_PT2_FILE}")
        safe = archive.is_file()
        path = root
    elif found is ModelFormat.TRANSFORMERS:
        path = resolve_inside(root, str(config.get("model_binary")))
        safe = any(path.glob("*.safetensors"))
    else:
        key = "pickled_model" if found is ModelFormat.SKLEARN else "data"
        path = resolve_inside(root, str(config.get(key)))
        safe = _is_data(found, path, config)
    # Code stored with a model would run on loading, as a pickle does.
    return found, path, not safe or bool(config.get("code"))


def _is_data(found: ModelFormat, path: Path, config: Mapping[str, Any]) -> bool:
    match found:
        case ModelFormat.SKLEARN:
            return config.get("serialization_format") == _SKOPS
        case ModelFormat.XGBOOST:
            return path.suffix in _XGBOOST_FILES
        case ModelFormat.CATBOOST:
            return True  # none of its formats holds code
        case _:
            return path.suffix in _LIGHTGBM_FILES


def _config(value: Any, label: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _unsupported(label, "its MLmodel file describes no flavor")
    return value


def _signature(signature: Any, found: ModelFormat, label: str) -> Signature:
    try:
        inputs = _inputs(signature.inputs, found)
        if found.is_estimator:
            return Signature(inputs=inputs, outputs=(_ESTIMATOR_OUTPUT,))
        return check_signature(Signature(inputs=inputs, outputs=_outputs(signature.outputs)))
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"]
        raise _unsupported(label, f"its signature is not usable: {reason}") from error
    except ValueError as error:
        raise _unsupported(label, f"its signature is not usable: {error}") from error


def _inputs(schema: Any, found: ModelFormat) -> tuple[TensorSpec, ...]:
    if schema.is_tensor_spec():
        return _specs(schema, "input")
    if not found.is_estimator:
        raise ValueError("the inputs are table columns, not tensors")
    return tuple(_column(column) for column in schema.inputs)


def _outputs(schema: Any) -> tuple[TensorSpec, ...]:
    if schema is None:
        raise ValueError("it has no outputs")
    if not schema.is_tensor_spec():
        raise ValueError("the outputs are table columns, not tensors")
    return _specs(schema, "output")


def _column(column: Any) -> TensorSpec:
    """Return the input [rows] of one column of a table."""
    name, kind = column.name, getattr(column.type, "name", str(column.type))
    if name is None:
        raise ValueError("its columns have no names; log it with a DataFrame as input_example")
    name = str(name)  # the columns of pd.DataFrame(array) are 0, 1, 2
    datatype = _COLUMN_TYPES.get(kind)
    if datatype is None:
        raise ValueError(
            f"column {printable(name)!r} has the type {kind}; supported: {', '.join(_COLUMN_TYPES)}"
        )
    try:
        return TensorSpec(name=name, dtype=datatype, shape=(DYNAMIC,))
    except ValidationError:
        raise ValueError(
            f"column {printable(name)!r} has a name with other characters than letters, digits, "
            "'_', '-', '.', '/' and spaces; rename it before training"
        ) from None


def _optional(schema: Any) -> frozenset[str]:
    return frozenset(str(column.name) for column in schema.inputs if not column.required)


def _specs(schema: Any, default: str) -> tuple[TensorSpec, ...]:
    # MLflow allows a tensor without a name only if it is the only one.
    return tuple(
        TensorSpec(
            name=default if spec.name is None else spec.name,
            dtype=Datatype.from_numpy_name(spec.type.name),
            shape=tuple(spec.shape),
        )
        for spec in schema.inputs
    )


def check_signature(signature: Signature) -> Signature:
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


def _unsupported(label: str, reason: str, hint: str | None = None) -> MlctlError:
    return MlctlError(ErrorCode.UNSUPPORTED_MODEL, f"{label} is not usable: {reason}", hint)
