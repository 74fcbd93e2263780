"""What a graph shows of its inputs, and what only a run proves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mlctl.bundle.manifest import InputConstraints
from mlctl.bundle.tensors import DYNAMIC, NO_MISSING, Datatype, Signature, TensorSpec
from mlctl.optimize.data import Rows
from mlctl.optimize.proofs.constraints import find_constraints
from mlctl.optimize.proofs.probing import ProbeResult
from mlctl.registry.catalog import ModelFormat

OUTPUT = TensorSpec(name="y", dtype=Datatype.FP32, shape=(DYNAMIC, DYNAMIC))
TABLE = helper.make_tensor("table", TensorProto.FLOAT, [5, 2], np.zeros(10, np.float32))
SMALL = helper.make_tensor("small", TensorProto.FLOAT, [3, 2], np.zeros(6, np.float32))
AXES = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
KINDS = {"int64": TensorProto.INT64, "uint8": TensorProto.UINT8, "float32": TensorProto.FLOAT}


def node(kind: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(), [output], **attributes)


def found(
    path: Path,
    nodes: list[Any],
    inputs: dict[str, np.ndarray],
    dims: Mapping[str, Sequence[str | int]] = MappingProxyType({}),
    model_format: ModelFormat = ModelFormat.ONNX,
) -> InputConstraints | None:
    """The constraints of a graph with `inputs`, whose dimensions are `dims`."""
    values = [
        helper.make_tensor_value_info(
            name, KINDS[array.dtype.name], dims.get(name, ["n", *array.shape[1:]])
        )
        for name, array in inputs.items()
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", values, [output], [TABLE, SMALL, AXES])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )
    specs = tuple(
        TensorSpec(
            name=name,
            dtype=Datatype.from_numpy_name(array.dtype.name),
            shape=tuple(
                DYNAMIC if isinstance(dim, str) else dim
                for dim in dims.get(name, ["n", *array.shape[1:]])
            ),
        )
        for name, array in inputs.items()
    )
    exported: Any = SimpleNamespace(
        graph=path,
        signature=Signature(inputs=specs, outputs=(OUTPUT,)),
        prepared=SimpleNamespace(
            missing=NO_MISSING, transform=None, source=SimpleNamespace(format=model_format)
        ),
        baseline=SimpleNamespace(rows=Rows(inputs, None)),
        probes=ProbeResult(),
    )
    return find_constraints(exported)


IDS = np.zeros((4, 3), np.int64)


@pytest.mark.parametrize(
    ("nodes", "dtype", "expected"),
    [
        ([node("Gather", "table x", "y")], "int64", (-5, 4)),
        ([node("Gather", "table x", "y", axis=1)], "int64", (-2, 1)),
        ([node("Unsqueeze", "x axes", "z"), node("Gather", "table z", "y")], "int64", (-5, 4)),
        (
            [node("Cast", "x", "z", to=TensorProto.INT64), node("Gather", "table z", "y")],
            "uint8",
            (0, 4),
        ),
        (
            [
                node("Gather", "table x", "a"),
                node("Gather", "small x", "b"),
                node("Concat", "a b", "y", axis=1),
            ],
            "int64",
            (-3, 2),
        ),
    ],
)
def test_constraints__input_looks_up_a_table__has_its_range(
    tmp_path: Path, nodes: list[Any], dtype: str, expected: tuple[int, int]
) -> None:
    constraints = found(tmp_path / "m.onnx", nodes, {"x": IDS.astype(dtype)})
    assert constraints == InputConstraints(ranges={"x": expected})


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Add", "x x", "z"), node("Gather", "table z", "y")],
        [node("Shape", "x", "z"), node("Gather", "table z", "y")],
        [node("Cast", "x", "y", to=TensorProto.FLOAT)],
        [node("Cast", "x", "f", to=TensorProto.FLOAT), node("Gather", "f axes", "y")],
    ],
)
def test_constraints__no_table_takes_the_values_as_they_are__has_none(
    tmp_path: Path, nodes: list[Any]
) -> None:
    assert found(tmp_path / "m.onnx", nodes, {"x": IDS}) is None


def test_constraints__float_input__has_none(tmp_path: Path) -> None:
    nodes = [node("Mul", "x x", "y")]
    assert found(tmp_path / "m.onnx", nodes, {"x": IDS.astype(np.float32)}) is None


THREE = {name: np.ones((4, 3), np.float32) for name in "abc"}
NAMED = {name: ["n", "t"] for name in "abc"}


def groups(constraints: InputConstraints | None) -> list[list[str]]:
    if constraints is None:
        return []
    return [[axis.input for axis in group] for group in constraints.equal_lengths]


def test_constraints__model_fails_at_unequal_lengths__they_must_be_equal(tmp_path: Path) -> None:
    """`c` has the same name, but any length will do."""
    nodes = [
        node("Concat", "a b", "z", axis=0),
        node("ReduceSum", "c axes", "s"),
        node("Concat", "z z", "u", axis=0),
        node("ReduceSum", "u axes", "v"),
        node("Concat", "v s", "y", axis=0),
    ]
    constraints = found(tmp_path / "m.onnx", nodes, THREE, NAMED)
    assert groups(constraints) == [["a", "b"]]


def test_constraints__torch_exported_the_names__they_are_taken_without_a_run(
    tmp_path: Path,
) -> None:
    nodes = [node("Add", "a b", "z"), node("Add", "z c", "y")]
    constraints = found(tmp_path / "m.onnx", nodes, THREE, NAMED, ModelFormat.PYTORCH)
    assert groups(constraints) == [["a", "b", "c"]]


@pytest.mark.parametrize(
    ("nodes", "dims"),
    [
        # Size 1 is broadcast.
        ([node("Add", "a b", "z"), node("Add", "z c", "y")], NAMED),
        # Each length has a name of its own.
        ([node("Concat", "a b c", "y", axis=0)], {name: ["n", name] for name in "abc"}),
        # No other size runs at all.
        ([node("Concat", "a b c", "z", axis=0), node("MatMul", "z small", "y")], NAMED),
    ],
)
def test_constraints__equality_is_not_proven__there_is_none(
    tmp_path: Path, nodes: list[Any], dims: Any
) -> None:
    assert found(tmp_path / "m.onnx", nodes, THREE, dims) is None
