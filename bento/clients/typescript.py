"""The TypeScript client: a strictly typed package on fetch, with no dependencies.

What differs from model to model is written from the templates here. The rest, the folder
`typescript_runtime`, is copied as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from string import Template

from bento.clients.typescript_texts import (
    INDEX,
    MODEL,
    PACKAGE,
    README,
    SMOKE,
    TSCONFIG,
)
from bundle import __version__
from bundle.tensors import DYNAMIC, Datatype
from services.online.openapi.model import ApiModel, ApiTensor

_RUNTIME = Path(__file__).with_name("typescript_runtime")
# What the smoke test puts where a dimension may have any size.
_ROWS = 2
_ARRAYS: Mapping[Datatype, str] = {
    Datatype.BOOL: "Uint8Array",
    Datatype.UINT8: "Uint8Array",
    Datatype.UINT16: "Uint16Array",
    Datatype.UINT32: "Uint32Array",
    Datatype.UINT64: "BigUint64Array",
    Datatype.INT8: "Int8Array",
    Datatype.INT16: "Int16Array",
    Datatype.INT32: "Int32Array",
    Datatype.INT64: "BigInt64Array",
    Datatype.FP16: "Uint16Array",
    Datatype.BF16: "Uint16Array",
    Datatype.FP32: "Float32Array",
    Datatype.FP64: "Float64Array",
}


class TypescriptGenerator:
    """Writes a package NAME-client, with package.json, README.md and a smoke test."""

    def files(self, model: ApiModel) -> Mapping[str, str | bytes]:
        words = _words(model)
        templates = {
            "package.json": PACKAGE,
            "tsconfig.json": TSCONFIG,
            "README.md": README,
            "src/index.ts": INDEX,
            "src/model.ts": MODEL,
            "src/smoke.ts": SMOKE,
        }
        written: dict[str, str | bytes] = {
            name: Template(text).substitute(words) for name, text in templates.items()
        }
        for path in sorted(_RUNTIME.glob("*.ts")):
            text = path.read_text(encoding="utf-8")
            written[f"src/runtime/{path.name}"] = f"// {model.header}\n{text}"
        return written


def _words(model: ApiModel) -> dict[str, str]:
    return {
        "name": model.name,
        "digest": model.digest,
        "header": model.header,
        "distribution": f"{model.identifier.replace('_', '-')}-client",
        "version": f"{__version__}+{model.digest[:12] or 'unknown'}",
        "request": _properties(model.inputs),
        "response": _properties(model.outputs),
        "inputs": _specs(model.inputs),
        "outputs": _specs(model.outputs),
        "takes": "\n".join(_bullet(tensor) for tensor in model.inputs),
        "gives": "\n".join(_bullet(tensor) for tensor in model.outputs),
        "example": "\n".join(f"    {each.field}: {_example(each)}," for each in model.inputs),
        "first_input": model.inputs[0].field,
        "first_output": model.outputs[0].field,
    }


def _properties(tensors: Iterable[ApiTensor]) -> str:
    return "\n".join(
        f"  /** {json.dumps(each.name, ensure_ascii=False)[1:-1]}: {_told(each)} */\n"
        f'  readonly {each.field}: Tensor<DataOf["{each.dtype.value}"]>;'
        for each in tensors
    )


def _specs(tensors: Iterable[ApiTensor]) -> str:
    return "\n".join(
        f"    {{ name: {json.dumps(each.name)}, field: {json.dumps(each.field)}, "
        f'datatype: "{each.dtype.value}", shape: {list(each.shape)} }},'
        for each in tensors
    )


def _bullet(tensor: ApiTensor) -> str:
    return f"- `{tensor.field}`: `{tensor.name}`, {_told(tensor)}"


def _told(tensor: ApiTensor) -> str:
    kind = _ARRAYS.get(tensor.dtype, "Uint8Array[]")
    return f"{tensor.dtype.value} ({kind}), shape {list(tensor.shape)}."


def _example(tensor: ApiTensor) -> str:
    shape = [_ROWS if size == DYNAMIC else size for size in tensor.shape]
    count = " * ".join(map(str, shape)) or "1"
    kind = _ARRAYS.get(tensor.dtype)
    if kind is None:
        made = f'Array.from({{ length: {count} }}, () => new TextEncoder().encode("text"))'
    else:
        made = f"new {kind}({count})"
    return f"{{ data: {made}, shape: {shape} }}"
