"""Source models that are rejected for what their graph says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.proofs.reference import load_reference
from mlctl.registry.catalog import ModelFormat, SourceModel
from tests.support.torch_models import save_torch

X = np.random.default_rng(5).standard_normal((8, 4), dtype=np.float32)


def normalizing(*, statistics: bool = True) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=statistics))


@pytest.mark.parametrize(
    ("module", "operator"),
    [
        (normalizing(), "batch_norm"),
        (nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), "dropout"),
    ],
)
def test_pt2_in_training_mode__is_rejected__names_the_mode_and_the_operator(
    tmp_path: Path, module: nn.Module, operator: str
) -> None:
    source = save_torch(tmp_path / "model", module.train(), {"x": X}, ("y",))
    with pytest.raises(MlctlError) as caught:
        load_reference(source)
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL
    assert f"models:/zoo/1 was logged in training mode: its {operator} " in caught.value.message
    assert "model.eval()" in caught.value.hint


@pytest.mark.parametrize(
    "module",
    [
        normalizing().eval(),
        # Evaluation mode does not change these two.
        normalizing(statistics=False).eval(),
        nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0)).train(),
    ],
)
def test_pt2__same_outputs_as_in_evaluation_mode__is_loaded(
    tmp_path: Path, module: nn.Module
) -> None:
    source = save_torch(tmp_path / "model", module, {"x": X}, ("y",))
    found = load_reference(source).run({"x": X})["y"]
    np.testing.assert_allclose(found, module(torch.tensor(X)).detach().numpy(), atol=1e-6)


def float_value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ("rows", 4))


def onnx_source(
    tmp_path: Path,
    nodes: list[onnx.NodeProto],
    outputs: list[onnx.ValueInfoProto],
    named: tuple[str, str] = ("x", "y"),
) -> SourceModel:
    ones = [numpy_helper.from_array(np.ones(4, np.float32), name) for name in "sbmv"]
    graph = helper.make_graph(nodes, "g", [float_value("x")], outputs, ones)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
    taken, given = (TensorSpec(name=name, dtype=Datatype.FP32, shape=(-1, 4)) for name in named)
    signature = Signature(inputs=(taken,), outputs=(given,))
    uri = "models:/zoo/1"
    return SourceModel(
        "zoo", "1", uri, "run", ModelFormat.ONNX, signature, tmp_path, path, "0" * 64
    )


def rejection(source: SourceModel) -> MlctlError:
    with pytest.raises(MlctlError) as caught:
        load_reference(source)
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL
    return caught.value


def test_onnx_batch_norm_in_training_mode__is_rejected__names_the_mode(tmp_path: Path) -> None:
    node = helper.make_node(
        "BatchNormalization", [*"xsbmv"], ["y", "mean", "variance"], training_mode=1
    )
    error = rejection(onnx_source(tmp_path, [node], [float_value("y")]))
    assert "logged in training mode: its BatchNormalization" in error.message
    assert "model.eval()" in error.hint


def test_sequence_output__is_rejected__names_its_kind(tmp_path: Path) -> None:
    node = helper.make_node("SequenceConstruct", ["x"], ["y"])
    output = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    error = rejection(onnx_source(tmp_path, [node], [output]))
    assert error.message == "output 'y' of models:/zoo/1 is a sequence, not a tensor"


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (("x", "z"), "has the outputs y; its signature names z"),
        (("a", "y"), "has the inputs x; its signature names a"),
    ],
)
def test_onnx_with_other_names_than_its_signature__is_rejected__gives_both(
    tmp_path: Path, named: tuple[str, str], message: str
) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    assert message in rejection(onnx_source(tmp_path, nodes, [float_value("y")], named)).message
