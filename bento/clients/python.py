"""The Python client: a typed package on httpx and numpy, with gRPC as an extra.

What differs from model to model is written from the templates here. The rest, the folder
`runtime`, is copied as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from string import Template

from bento.clients.python_texts import CLIENT, GRPC, INIT, PYPROJECT, README, SMOKE, TENSORS
from bundle import __version__
from bundle.tensors import DYNAMIC, Datatype
from services.online.openapi.model import ApiModel, ApiTensor

_RUNTIME = Path(__file__).with_name("runtime")
# What the smoke test puts where a dimension may have any size.
_ROWS = 2
_LINE = 100


class PythonGenerator:
    """Writes a package `NAME_client`, with pyproject.toml, README.md and a smoke test."""

    def files(self, model: ApiModel) -> Mapping[str, str | bytes]:
        package = f"{model.identifier}_client"
        values = {**_words(model), "package": package}
        written: dict[str, str | bytes] = {
            "pyproject.toml": _fill(PYPROJECT, values),
            "README.md": _fill(README, values),
            "smoke_test.py": _fill(SMOKE, values),
            f"{package}/__init__.py": _fill(INIT, values),
            f"{package}/tensors.py": _fill(TENSORS, values),
            f"{package}/client.py": _fill(CLIENT, values),
            f"{package}/grpc.py": _fill(GRPC, values),
            f"{package}/py.typed": "",
        }
        for path in sorted(_RUNTIME.glob("*.py")):
            text = path.read_text(encoding="utf-8")
            written[f"{package}/runtime/{path.name}"] = f"# {model.header}\n{text}"
        for name in ("v2.proto", "v2.binpb"):
            written[f"{package}/runtime/{name}"] = (
                files("services.protocol").joinpath(name).read_bytes()
            )
        return written


def _fill(text: str, values: Mapping[str, str]) -> str:
    return Template(text).substitute(values)


def _words(model: ApiModel) -> dict[str, str]:
    example = _call("Request", [f"{each.field}={_example(each)}" for each in model.inputs])
    return {
        "name": model.name,
        "digest": model.digest,
        "header": model.header,
        "distribution": f"{model.identifier.replace('_', '-')}-client",
        "version": f"{__version__}+{model.digest[:12] or 'unknown'}",
        "request_fields": _fields(model.inputs),
        "response_fields": _fields(model.outputs),
        "input_specs": _specs("INPUTS", model.inputs),
        "output_specs": _specs("OUTPUTS", model.outputs),
        "takes": "\n".join(_bullet(tensor) for tensor in model.inputs),
        "gives": "\n".join(_bullet(tensor) for tensor in model.outputs),
        "from_arrays": _call(
            "Response", [*(f"arrays[{quoted(each.name)}]" for each in model.outputs), "meta"], 4
        ),
        "example": example,
        "indented_example": example.replace("\n", "\n    "),
        "first_input": model.inputs[0].field,
        "first_output": model.outputs[0].field,
    }


def quoted(text: str) -> str:
    """A Python string literal; tensor names have neither quotes nor backslashes."""
    return f'"{text}"'


def _fields(tensors: Iterable[ApiTensor]) -> str:
    return "\n".join(
        f"    {each.field}: npt.NDArray[np.{_scalar(each.dtype)}]\n"
        f'    """{quoted(each.name)[1:-1]}: {_told(each)}"""'
        for each in tensors
    )


def _specs(name: str, tensors: Iterable[ApiTensor]) -> str:
    made = [
        _call("Spec", [quoted(each.name), quoted(each.field), quoted(each.dtype), _shape(each)], 4)
        for each in tensors
    ]
    alone = f"{name} = ({made[0]},)"
    if len(made) == 1 and len(alone) <= _LINE and "\n" not in alone:
        return alone
    lines = "".join(f"    {each},\n" for each in made)
    return f"{name} = (\n{lines})"


def _call(name: str, arguments: Iterable[str], indent: int = 0) -> str:
    """A call, as the formatter writes it, of which `indent` columns and some are not to use."""
    given = list(arguments)
    inline = f"{name}({', '.join(given)})"
    if indent + len(inline) + len("return ,") <= _LINE:
        return inline
    margin = " " * indent
    lines = "".join(f"{margin}    {each},\n" for each in given)
    return f"{name}(\n{lines}{margin})"


def _bullet(tensor: ApiTensor) -> str:
    return f"- `{tensor.field}`: `{tensor.name}`, {_told(tensor)}"


def _told(tensor: ApiTensor) -> str:
    kind = "object array of bytes" if tensor.dtype is Datatype.BYTES else _scalar(tensor.dtype)
    bits = ", the bits of bfloat16" if tensor.dtype is Datatype.BF16 else ""
    return f"{tensor.dtype.value} ({kind}{bits}), shape {list(tensor.shape)}."


def _scalar(dtype: Datatype) -> str:
    """The name of numpy's scalar type."""
    special = {Datatype.BOOL: "bool_", Datatype.BYTES: "object_"}
    return special.get(dtype, dtype.numpy_name)


def _shape(tensor: ApiTensor, dynamic: int = DYNAMIC) -> str:
    """The shape as a tuple, with `dynamic` for what may have any size."""
    inside = ", ".join(str(dynamic if size == DYNAMIC else size) for size in tensor.shape)
    return f"({inside},)" if len(tensor.shape) == 1 else f"({inside})"


def _example(tensor: ApiTensor) -> str:
    shape = _shape(tensor, _ROWS)
    if tensor.dtype is Datatype.BYTES:
        return f'np.full({shape}, b"text", dtype=np.object_)'
    return f"np.zeros({shape}, np.{_scalar(tensor.dtype)})"
