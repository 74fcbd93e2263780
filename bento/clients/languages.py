"""Clients of one model in each language, rendered from templates.

A client is a pure function of the model: the same model always gives the same files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

from jinja2 import Environment

from mlctl import __version__
from mlctl.bento.templates import environment
from mlctl.bundle.tensors import DYNAMIC, Datatype
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import write_atomic
from mlctl.core.paths import check_relative
from mlctl.services.online.grpc.typed.layout import DIGEST, FIRST, Field, lay_out
from mlctl.services.online.openapi.document import document, to_text
from mlctl.services.online.openapi.model import ApiModel, ApiTensor

Files = Mapping[str, str | bytes]
"""The content of each file by its path relative to the output folder, with `/` between parts."""

# The size of a dynamic dimension in an example.
_EXAMPLE_SIZE = 2
_RAW_FORMS: Mapping[Datatype, str] = {
    Datatype.UINT8: ": one byte per value",
    Datatype.FP16: ": two bytes per value, the low byte first, as in IEEE 754",
    Datatype.BF16: ": two bytes per value, the low byte first: the upper half of a float",
}


def python_files(model: ApiModel) -> Files:
    """Return a typed package on httpx and numpy, with gRPC as an extra."""
    package = f"{model.identifier}_client"
    values = {**_names(model), "package": package}
    return {
        "pyproject.toml": _PYTHON.get_template("pyproject.toml.j2").render(values),
        "README.md": _PYTHON.get_template("python_readme.md.j2").render(values),
        f"{package}/__init__.py": _PYTHON.get_template("client.py.j2").render(values),
        f"{package}/grpc.py": _PYTHON.get_template("grpc.py.j2").render(values),
        f"{package}/py.typed": "",
        f"{package}/v2.binpb": files("mlctl.services.protocol").joinpath("v2.binpb").read_bytes(),
    }


def proto_files(model: ApiModel) -> Files:
    """Return the .proto of the model's typed gRPC service, which the server's reflection has."""
    layout = lay_out(model)
    text = _PROTO.get_template("model.proto.j2").render(
        model=model, layout=layout, first_field=FIRST, digest_field=DIGEST
    )
    return {layout.path: text}


def openapi_files(model: ApiModel) -> Files:
    """Return the OpenAPI document of a server with this model alone."""
    return {"openapi.json": to_text(document([model]))}


GENERATORS: Mapping[str, Callable[[ApiModel], Files]] = MappingProxyType(
    {
        "python": python_files,
        "proto": proto_files,
        "openapi": openapi_files,
    }
)


def write_files(folder: Path, files: Files, *, force: bool = False) -> None:
    """Write `files` into `folder`; INVALID_INPUT if it holds other files, unless `force`.

    With `force`, files of the same names are replaced, and all others stay as they are.
    """
    if not force and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{folder} exists and is not an empty folder",
            "Name another one with --out, or replace files of the same names with --force.",
        )
    for name, content in files.items():
        check_relative(name)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content.encode() if isinstance(content, str) else content)


def _names(model: ApiModel) -> dict[str, object]:
    return {
        "model": model,
        "distribution": f"{model.identifier.replace('_', '-')}-client",
        "version": f"{__version__}+{model.digest[:12] or 'unknown'}",
    }


def _literal(value: object) -> str:
    """Return a string or a list as Python, TOML and JSON all write it."""
    return json.dumps(value, ensure_ascii=False)


def _python_scalar(dtype: Datatype) -> str:
    """Return the name of numpy's scalar type."""
    special = {Datatype.BOOL: "bool_", Datatype.BYTES: "object_"}
    return special.get(dtype, dtype.numpy_name)


def _python_shape(tensor: ApiTensor, dynamic: int = DYNAMIC) -> str:
    """Return the shape as a tuple, with `dynamic` for a dimension of any size."""
    sizes = ", ".join(str(dynamic if size == DYNAMIC else size) for size in tensor.shape)
    return f"({sizes},)" if len(tensor.shape) == 1 else f"({sizes})"


def _python_example(tensor: ApiTensor) -> str:
    shape = _python_shape(tensor, _EXAMPLE_SIZE)
    if tensor.dtype is Datatype.BYTES:
        return f'np.full({shape}, b"text", dtype=np.object_)'
    return f"np.zeros({shape}, np.{_python_scalar(tensor.dtype)})"


def _python_description(tensor: ApiTensor) -> str:
    match tensor.dtype:
        case Datatype.BYTES:
            kind = "object array of bytes"
        case Datatype.BF16:
            kind = "uint16, the bits of bfloat16"
        case _:
            kind = _python_scalar(tensor.dtype)
    return f"{tensor.name}: {tensor.dtype.value} ({kind}), shape {list(tensor.shape)}."


def _raw_form(field: Field) -> str:
    return _RAW_FORMS.get(field.tensor.dtype, "")


def _is_sized_by_values(field: Field) -> bool:
    """Return whether the number of values determines the one dynamic dimension."""
    shape = field.tensor.shape
    return shape.count(DYNAMIC) == 1 and 0 not in shape


def _environment(**filters: Callable[..., str]) -> Environment:
    """Return an environment without quoting: `literal` quotes where a language wants a string.

    Names of models and tensors have neither quotes nor backslashes nor control characters:
    bundles and `find_source` check them.
    """
    made = environment(Path(__file__).with_name("templates"), str)
    made.filters |= {"literal": _literal, **filters}
    return made


_PYTHON = _environment(
    scalar=_python_scalar,
    shape=_python_shape,
    example=_python_example,
    described=_python_description,
)
_PROTO = _environment(raw_form=_raw_form)
_PROTO.tests["sized_by_values"] = _is_sized_by_values
