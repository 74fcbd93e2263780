"""Find out whether ONNX Runtime's fast INT8 kernels are exact on this processor.

On x86 without VNNI or AMX they add pairs of products in 16 bits and saturate, which can spoil a
whole output. `session.x64quantprecision` then selects exact kernels. Elsewhere the option only
makes INT8 slower, by a factor of 2 to 5, because it rules out the VNNI and AMX kernels: so a
graph at its limits decides, not the name of the processor.
"""

from __future__ import annotations

from functools import cache
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np

OPTION = "session.x64quantprecision"

# Kernels differ by the number of rows.
_ROWS = (1, 4, 64)
_INPUTS, _OUTPUTS, _SIDE = 64, 32, 3
_LARGEST_INPUT, _LARGEST_WEIGHT = 255, 127
# Brings the convolution's largest sum into 8 bits.
_SCALE = 131072.0

# Every graph with INT8 weights has an operator with one of these in its name.
_MARKS = (b"uantize", b"Integer", b"QLinear")


def precision_option(model: Path) -> str:
    """Return the value of OPTION for the ONNX file `model`: 1 selects the exact kernels.

    Graphs without INT8 operators need no probe and get ONNX Runtime's default, 0.
    """
    return "1" if _has_int8(model) and not fast_kernels_are_exact() else "0"


@cache
def fast_kernels_are_exact() -> bool:
    """Run a product and a convolution of the largest values with the fast kernels."""
    import onnxruntime

    runtime: Any = onnxruntime
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry(OPTION, "0")
    options.log_severity_level = 4
    session = runtime.InferenceSession(_probe(), options, providers=["CPUExecutionProvider"])
    return all(_is_exact(session, rows) for rows in _ROWS)


def _is_exact(session: Any, rows: int) -> bool:
    inputs = np.full((rows, _INPUTS), _LARGEST_INPUT, np.uint8)
    images = np.full((rows, _INPUTS, _SIDE, _SIDE), _LARGEST_INPUT, np.uint8)
    products, pixels = session.run(None, {"x": inputs, "images": images})
    product = _INPUTS * _LARGEST_INPUT * _LARGEST_WEIGHT
    pixel = round(product * _SIDE * _SIDE / _SCALE)
    return bool((products == product).all() and (pixels == pixel).all())


def _probe() -> bytes:
    """Return a graph of one product and one convolution whose weights are all the largest."""
    from onnx import TensorProto, helper, numpy_helper

    value = helper.make_tensor_value_info
    constants = {
        "weights": np.full((_INPUTS, _OUTPUTS), _LARGEST_WEIGHT, np.int8),
        "filters": np.full((_OUTPUTS, _INPUTS, _SIDE, _SIDE), _LARGEST_WEIGHT, np.int8),
        "one": np.float32(1.0),
        "scale": np.float32(_SCALE),
        "unsigned_zero": np.uint8(0),
        "signed_zero": np.int8(0),
    }
    convolution = ["images", "one", "unsigned_zero", "filters", "one", "signed_zero"]
    graph = helper.make_graph(
        [
            helper.make_node("MatMulInteger", ["x", "weights"], ["products"]),
            helper.make_node("QLinearConv", [*convolution, "scale", "unsigned_zero"], ["pixels"]),
        ],
        "int8_probe",
        [
            value("x", TensorProto.UINT8, ["n", _INPUTS]),
            value("images", TensorProto.UINT8, ["n", _INPUTS, _SIDE, _SIDE]),
        ],
        [
            value("products", TensorProto.INT32, ["n", _OUTPUTS]),
            value("pixels", TensorProto.UINT8, ["n", _OUTPUTS, 1, 1]),
        ],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    content: bytes = model.SerializeToString()
    return content


def _has_int8(model: Path) -> bool:
    with model.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        return any(content.find(mark) >= 0 for mark in _MARKS)
