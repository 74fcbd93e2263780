"""Read the inputs and data files of an ONNX file without loading its weights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from mlctl.bundle.tensors import DYNAMIC
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.paths import resolve_inside

_NUMBER = re.compile("[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Graph:
    """`files` are the graph and its data files; `inputs` are shapes by name (-1: dynamic)."""

    files: tuple[Path, ...]
    inputs: Mapping[str, tuple[int, ...]]


def read_graph(model: Path) -> Graph:
    """Read the ONNX file `model` without its weights.

    PATH_UNSAFE or FILE_MISSING for a tensor whose data is outside the model's folder or missing;
    UNSUPPORTED_MODEL for a file that is not ONNX.
    """
    import onnx

    try:
        proto = onnx.load(str(model), load_external_data=False)
    except FileNotFoundError:
        raise MlctlError(ErrorCode.FILE_MISSING, f"file {model.name!r} is missing") from None
    except Exception as error:
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL, f"{model.name} is not an ONNX model: {error}"
        ) from error
    return Graph((model, *_data_files(proto, model.parent)), _inputs(proto.graph))


def has_data_files(model: Path) -> bool:
    """Return whether `read_graph` may find a data file of `model`, or an error.

    A tensor in a data file has an entry with the key "location". Finding no such word takes no
    import of onnx and does not parse the file.
    """
    if not model.is_file() or not model.stat().st_size:
        return True
    with model.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        return content.find(b"location") >= 0


def _data_files(proto: Any, directory: Path) -> list[Path]:
    from onnx.external_data_helper import uses_external_data

    locations = {
        location
        for tensor in _tensors(proto)
        if uses_external_data(tensor)
        for location in _locations(tensor)
    }
    files = [resolve_inside(directory, location) for location in sorted(locations)]
    for path in files:
        if not path.is_file():
            raise MlctlError(ErrorCode.FILE_MISSING, f"external data file {path.name!r} is missing")
    return files


def _locations(tensor: Any) -> Iterator[str]:
    """Yield every location of a tensor, because runtimes differ in which one they use."""
    for entry in tensor.external_data:
        value = str(entry.value)  # bytes if it is not text
        if entry.key in ("offset", "length") and not _NUMBER.fullmatch(value):
            raise MlctlError(
                ErrorCode.UNSUPPORTED_MODEL,
                f"{entry.key} of the external data of a tensor is {value[:40]!r}, not a number",
            )
        if entry.key == "location":
            yield value


def _inputs(graph: Any) -> dict[str, tuple[int, ...]]:
    constants = {tensor.name for tensor in graph.initializer}
    return {
        value.name: tuple(
            dim.dim_value if dim.HasField("dim_value") else DYNAMIC
            for dim in value.type.tensor_type.shape.dim
        )
        for value in graph.input
        if value.name not in constants  # before IR version 4 every constant was an input too
    }


def _tensors(message: Any) -> Iterator[Any]:
    """Yield every TensorProto in a message: initializers, constants, and those of subgraphs."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for child in [value] if hasattr(value, "ListFields") else value:
            if field.message_type.name == "TensorProto":
                yield child
            else:
                yield from _tensors(child)
