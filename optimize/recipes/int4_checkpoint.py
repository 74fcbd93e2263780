"""Language models whose checkpoint has int4 weights (AWQ, GPTQ), and the same weights in fp32.

A matrix `NAME.weight` [out, in] is stored as `NAME.qweight` (eight values in each int32),
`NAME.scales` and `NAME.qzeros` [groups, out]: weight = (value - zero) * scale. Its rows of one
group, or those of equal `NAME.g_idx`, share a scale. In fp32 that product is exact, because a scale
has 11 significant bits and the difference 5.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from mlctl.bundle.manifest import MODEL_NAME
from mlctl.optimize.recipes.base import save_graph
from mlctl.registry.hugging_face import CONFIG_NAME, QUANTIZATION, tokenizer_folder

if TYPE_CHECKING:
    from torch import Tensor

# The nibble of an int32, from the lowest, that has each of eight columns.
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
_GPTQ_ORDER = tuple(range(8))


def is_quantized(folder: Path) -> bool:
    """Whether the weights of the model in `folder` are stored as int4."""
    return QUANTIZATION in json.loads((folder / CONFIG_NAME).read_text())


@contextmanager
def model_folder(source: Path, *, dequantize: bool) -> Iterator[Path]:
    """Yield a folder with the model in `source` and its tokenizer, until the context ends.

    With `dequantize`, int4 weights are fp32 there. ValueError names what is wrong with them.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        if dequantize and is_quantized(source):
            _dequantize(source, folder)
        for file in (*tokenizer_folder(source).iterdir(), *source.iterdir()):
            weights = ".safetensors" in file.name and (folder / "model.safetensors").is_file()
            if not weights and not (folder / file.name).exists():
                (folder / file.name).symlink_to(file.absolute())
        yield folder


def sort_rows(folder: Path) -> None:
    """Replace `g_idx` in the graph of `folder` by weights whose rows are sorted by group.

    The rows' inputs are gathered in the same order. ONNX Runtime 1.31 multiplies by weights with
    `g_idx` 250 times slower on a CPU, and wrongly where a zero is not 8.
    """
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load(str(folder / MODEL_NAME))
    stored = {each.name: each for each in model.graph.initializer}
    nodes = []
    for node in model.graph.node:
        if node.op_type == "MatMulNBits" and len(node.input) > 4:
            tensor, weights, rows = node.input[0], stored[node.input[1]], stored[node.input.pop()]
            order = np.argsort(numpy_helper.to_array(rows), kind="stable")
            packed = numpy_helper.to_array(weights)
            values = np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)
            ordered = values[:, order].reshape((*packed.shape, 2))
            packed = ordered[..., 0] | ordered[..., 1] << 4
            weights.CopyFrom(numpy_helper.from_array(packed, weights.name))
            rows.CopyFrom(numpy_helper.from_array(order, rows.name))
            node.input[0] = f"{node.name}/sorted"
            nodes.append(helper.make_node("Gather", [tensor, rows.name], node.input[:1], axis=-1))
        nodes.append(node)
    if len(nodes) > len(model.graph.node):
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        save_graph(model, folder)


def _dequantize(source: Path, target: Path) -> None:
    """Write config.json and model.safetensors of the model in `source` with fp32 weights."""
    from safetensors.torch import load_file, save_file

    config = json.loads((source / CONFIG_NAME).read_text())
    method = config.pop(QUANTIZATION)["quant_method"]
    config.pop("torch_dtype", None)
    stored: dict[str, Tensor] = {}
    for file in source.glob("*.safetensors"):
        stored |= load_file(file)
    plain = {}
    for key in [key for key in stored if key.endswith(".qweight")]:
        layer = key.removesuffix(".qweight")
        parts = {
            part: stored.pop(f"{layer}.{part}")
            for part in ("qweight", "scales", "qzeros", "g_idx")
            if f"{layer}.{part}" in stored
        }
        plain[f"{layer}.weight"] = _matrix(layer, method, parts)
    save_file(stored | plain, target / "model.safetensors", {"format": "pt"})
    (target / CONFIG_NAME).write_text(json.dumps({**config, "dtype": "float32"}))


def _matrix(layer: str, method: str, parts: Mapping[str, Tensor]) -> Tensor:
    """Return the weights [out, in] of one layer."""
    import torch

    for part in ("scales", "qzeros"):
        if part not in parts:
            raise ValueError(f"{layer} has no {part}")
    qweight, scales, qzeros = parts["qweight"], parts["scales"], parts["qzeros"]
    if method == "awq":
        values, zeros = _unpack(qweight, _AWQ_ORDER), _unpack(qzeros, _AWQ_ORDER)
    else:  # its format stores each zero less one
        values, zeros = _unpack(qweight.T, _GPTQ_ORDER).T, _unpack(qzeros, _GPTQ_ORDER) + 1 & 15
    (rows, columns), groups = values.shape, len(scales)
    if scales.shape != (groups, columns) or zeros.shape != scales.shape or rows % groups:
        raise ValueError(f"the shapes of {layer}.qweight, scales and qzeros do not fit together")
    in_order = torch.arange(rows) // (rows // groups)
    group = in_order if method == "awq" else parts.get("g_idx", in_order).long()
    if not torch.equal(group.sort().values, in_order):
        raise ValueError(f"{layer}.g_idx does not give each of {groups} groups as many rows")
    return ((values - zeros[group]) * scales.float()[group]).T.contiguous()


def _unpack(packed: Tensor, order: tuple[int, ...]) -> Tensor:
    """Return the values 0 to 15 [rows, 8 * columns] in the int32 `packed` [rows, columns]."""
    import torch

    return (packed[:, :, None] >> 4 * torch.tensor(order) & 15).flatten(1)
