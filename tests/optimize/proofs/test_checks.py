"""What a graph is held to, on graphs and answers made for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from torch import nn

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.data import Rows, Tensors
from mlctl.optimize.metrics.rounding import close
from mlctl.optimize.proofs import export
from mlctl.optimize.proofs.checks import check_graph, check_parity, check_source
from mlctl.optimize.proofs.reference import TorchReference
from tests.optimize.zoo.prove import signature_of
from tests.support.sessions import FunctionSession

ROWS = Rows({"x": np.random.default_rng(1).standard_normal((9, 4), dtype=np.float32)}, None)


class Function:
    """A reference round a plain function."""

    def __init__(self, function: Callable[[np.ndarray], np.ndarray]) -> None:
        self._function = function

    def run(self, inputs: Tensors) -> dict[str, np.ndarray]:
        return {"y": self._function(inputs["x"])}

    def export(self, directory: Path, example: Tensors) -> None:
        raise AssertionError((directory, example))


def signature(*shape: int, out: tuple[int, ...] | None = None) -> Signature:
    return Signature(
        inputs=(TensorSpec(name="x", dtype=Datatype.FP32, shape=shape),),
        outputs=(TensorSpec(name="y", dtype=Datatype.FP32, shape=out or shape),),
    )


def graph(
    path: Path,
    shape: tuple[str | int, ...] = ("batch", 4),
    *,
    out: tuple[str | int, ...] | None = None,
    dtype: int = TensorProto.FLOAT,
    name: str = "y",
    opset: int = 20,
) -> Path:
    tensors = [
        helper.make_tensor_value_info("x", dtype, shape),
        helper.make_tensor_value_info(name, dtype, out or shape),
    ]
    made = helper.make_graph(
        [helper.make_node("Neg", ["x"], [name])], "g", tensors[:1], tensors[1:]
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.save_model(model, path / "model.onnx")
    return path / "model.onnx"


def test_check_graph__any_opset__is_returned(tmp_path: Path) -> None:
    assert check_graph(graph(tmp_path, opset=17), signature(-1, 4), None) == 17
    with pytest.raises(MlctlError, match="opset 17, not 20 as requested") as caught:
        check_graph(graph(tmp_path, opset=17), signature(-1, 4), 20)
    assert caught.value.code is ErrorCode.EXPORT_FAILED


def test_check_graph__another_opset__is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "OPSET", 17)
    made = signature_of(nn.Identity(), dict(ROWS.inputs), ("y",), {})
    with pytest.raises(MlctlError, match="opset version 17 is not supported"):
        TorchReference(nn.Identity(), made).export(tmp_path, ROWS.head(3).inputs)


@pytest.mark.parametrize(
    ("made", "wanted", "message"),
    [
        ({"shape": (2, 4)}, signature(-1, 4), "dimension 0 of input 'x' is fixed at 2"),
        ({"out": ("batch", 5)}, signature(-1, 4), "of output 'y' is fixed at 5, .* it is 4"),
        ({"out": ("batch",)}, signature(-1, 4), "output 'y' has 1 dimensions, not 2"),
        ({"dtype": TensorProto.DOUBLE}, signature(-1, 4), "datatype float64, the .* FP32"),
        ({"name": "z"}, signature(-1, 4), r"outputs \['z'\], the signature \['y'\]"),
    ],
)
def test_check_graph__other_names_types_or_dimensions__is_rejected(
    tmp_path: Path, made: dict[str, object], wanted: Signature, message: str
) -> None:
    with pytest.raises(MlctlError, match=message) as caught:
        check_graph(graph(tmp_path, **made), wanted, None)  # type: ignore[arg-type]
    assert caught.value.code is ErrorCode.EXPORT_FAILED


def test_check_graph__an_invalid_file__is_rejected(tmp_path: Path) -> None:
    path = graph(tmp_path)
    model = onnx.load(path)
    model.graph.node.append(helper.make_node("Neg", ["x"], ["y"]))
    onnx.save_model(model, path)
    with pytest.raises(MlctlError, match=r"it is not valid: .*single static assignment"):
        check_graph(path, signature(-1, 4), None)


@pytest.mark.parametrize(
    ("want", "have", "same"),
    [
        ([1.0, 100.0], [1.0005, 100.05], True),
        # Column by column: what is nothing beside 1e4 is all of the other output.
        ([[0.5, 1e4]], [[0.5, 1e4 + 5]], True),
        ([[0.5, 1e4]], [[1.5, 1e4]], False),
        ([[0.0, 1.0]], [[9e-6, 1.0]], True),
        ([np.nan, 1.0], [np.nan, 1.0], True),
        ([1.0], [np.nan], False),
        ([np.inf, 1.0], [np.inf, 1.0], True),
        ([np.inf, 1.0], [-np.inf, 1.0], False),
        ([], [], True),
    ],
)
def test_close__floats__may_differ_by_rounding(
    want: list[float], have: list[float], same: bool
) -> None:
    assert close(np.array(want, np.float32), np.array(have, np.float32)) is same


def test_close__integers_flags_types_and_shapes__must_be_equal() -> None:
    numbers = np.array([10**6, 2])
    assert close(numbers, numbers.copy())
    assert not close(numbers, numbers + 1)
    assert close(np.array([True, False]), np.array([True, False]))
    assert not close(np.array([True, False]), np.array([True, True]))
    assert not close(numbers, numbers.astype(np.int32))
    assert not close(numbers, numbers[:, None])


def test_close__half_precision__has_its_own_rounding() -> None:
    want = np.array([[1.0, 1e-3]], np.float16)
    assert close(want, want + np.float16(9e-4))
    assert not close(want, want + np.float16(9e-3))


def test_check_parity__right_at_one_length_only__is_rejected() -> None:
    rows = Rows({"x": np.random.default_rng(2).random((9, 5), dtype=np.float32)}, None)
    source = Function(lambda x: x.sum(1))
    baked = FunctionSession(lambda inputs: {"y": inputs["x"][:, :5].sum(1)})
    with pytest.raises(MlctlError, match="'y' differs from the source model's with size 5 as 6"):
        check_parity(source, baked, signature(-1, -1, out=(-1,)), rows)


def test_check_parity__a_source_of_one_size__is_rejected() -> None:
    def only_four(x: np.ndarray) -> np.ndarray:
        if x.shape[1] != 4:
            raise MlctlError(ErrorCode.UNSUPPORTED_MODEL, "four")
        return -x

    source = Function(only_four)
    session = FunctionSession(lambda inputs: {"y": -inputs["x"]})
    check_parity(source, session, signature(-1, 4), ROWS)
    with pytest.raises(
        MlctlError, match=r"runs with no other size .tried: size 4 as 3; "
    ) as caught:
        check_parity(source, session, signature(-1, -1), ROWS)
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL
    assert "instead of -1" in caught.value.hint


def test_check_parity__fails_at_another_batch_size__is_rejected() -> None:
    def run(inputs: Tensors) -> dict[str, np.ndarray]:
        if len(inputs["x"]) > 1:
            raise RuntimeError("Got: 3 Expected: 1")
        return {"y": -inputs["x"]}

    with pytest.raises(MlctlError, match="does not run at 3 rows: Got: 3 Expected: 1"):
        check_parity(Function(np.negative), FunctionSession(run), signature(-1, 4), ROWS)


def test_check_source__another_row_count_or_type__is_rejected() -> None:
    check_source(Function(np.negative), signature(-1, 4), ROWS)
    with pytest.raises(MlctlError, match=r"shape \[4\] for 1 input rows"):
        check_source(Function(lambda x: x.sum(0)), signature(-1, 4), ROWS)
    with pytest.raises(MlctlError, match="dtype float64"):
        check_source(Function(lambda x: x.astype(float)), signature(-1, 4), ROWS)
