"""Models as MLflow stores them: through the whole of `optimize`, and what is refused on reading."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.inputs.prepare import OptimizeOptions
from mlctl.optimize.pipeline import OptimizeResult, optimize
from mlctl.optimize.proofs.reference import load_reference
from mlctl.optimize.recipes.base import Target
from mlctl.optimize.recipes.discovery import select
from mlctl.optimize.variants.goals import Goals, Prefer
from mlctl.registry.catalog import ModelFormat, SourceModel
from mlctl.registry.mlmodel import read_mlmodel
from mlctl.services.model.golden import load_golden
from mlctl.services.model.session import open_session
from tests.optimize.zoo import models
from tests.support.memory_catalog import MemoryCatalog
from tests.support.sources import save_rows
from tests.support.torch_models import Mixing, save_torch

pytestmark = pytest.mark.slow

GENERATOR = np.random.default_rng(9)
X = GENERATOR.standard_normal((40, 4), dtype=np.float32)
Arrays = dict[str, np.ndarray]


def run(tmp_path: Path, source: SourceModel, inputs: Arrays) -> OptimizeResult:
    """fp32 alone: what the recipes do with a graph is tested elsewhere."""
    data = save_rows(tmp_path / "rows.npz", inputs)
    return optimize(
        "zoo",
        data,
        catalog=MemoryCatalog([source]),
        goals=Goals(prefer=Prefer.SIZE),
        options=OptimizeOptions(allow_pickle=source.pickle_allowed),
        recipes=select(["fp32"], Target.CPU),
    )


def assert_answers(result: OptimizeResult, module: nn.Module, inputs: Arrays) -> None:
    """The bundle's graph gives what the module gives, under the signature's names."""
    answers = open_session(result.bundle.path("model.onnx")).run(inputs)
    with torch.no_grad():
        found = module(*(torch.tensor(array) for array in inputs.values()))
    values = found.values() if isinstance(found, dict) else found
    wanted = {name: value.numpy() for name, value in zip(answers, values, strict=True)}
    for name, array in wanted.items():
        np.testing.assert_allclose(answers[name], array, atol=1e-5)


@pytest.mark.usefixtures("home")
def test_stored__a_dictionary_of_outputs__is_read_by_name(tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = models.Encoder().eval()
    inputs: Arrays = {
        "ids": GENERATOR.integers(0, 50, (40, 6)),
        "mask": np.tile([1, 1, 1, 1, 0, 0], (40, 1)),
    }
    source = save_torch(tmp_path / "model", module, inputs, ("tokens", "embedding"))
    assert source.format is ModelFormat.PYTORCH
    result = run(tmp_path, source, inputs)
    assert result.bundle.manifest.batching.row_independent
    assert_answers(result, module, inputs)


@pytest.mark.usefixtures("home")
def test_stored__doubles_flags_and_single_numbers__keep_their_types(tmp_path: Path) -> None:
    torch.manual_seed(2)
    module = models.Mixed()
    inputs: Arrays = {
        "numbers": GENERATOR.standard_normal((40, 4)),
        "flags": GENERATOR.random((40, 2)) > 0.5,
        "category": GENERATOR.integers(0, 7, 40),
    }
    source = save_torch(tmp_path / "model", module, inputs, ("scores", "yes", "class"), "pickle")
    assert source.pickle_allowed
    result = run(tmp_path, source, inputs)
    _, outputs = load_golden(result.bundle.path("golden.npz"))
    assert outputs["class"].shape == (len(outputs["scores"]),)
    assert_answers(result, module, inputs)


@pytest.mark.usefixtures("home")
def test_stored__dependent_rows__are_served_alone(tmp_path: Path) -> None:
    inputs = {"x": X}
    result = run(tmp_path, save_torch(tmp_path / "model", Mixing(), inputs, ("y",)), inputs)
    batching = result.bundle.manifest.batching
    assert (batching.row_independent, batching.buckets) == (False, (1,))


def logged_onnx(
    root: Path,
    shape: tuple[str | int, ...],
    *,
    declared: tuple[int, ...] = (-1, 4),
    opset: int = 17,
) -> SourceModel:
    """A model of the ONNX flavor: y = -x."""
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])], "g", tensors[:1], tensors[1:]
    )
    opsets = [helper.make_opsetid("", opset)]
    return save_onnx(root, helper.make_model(graph, opset_imports=opsets, ir_version=8), declared)


def save_onnx(root: Path, model: onnx.ModelProto, declared: tuple[int, ...]) -> SourceModel:
    import mlflow.onnx
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    taken, given = (
        Schema([TensorSpec(np.dtype(np.float32), declared, name)]) for name in ("x", "y")
    )
    mlflow.onnx.save_model(
        model, root, signature=ModelSignature(taken, given), pip_requirements=["onnxruntime"]
    )
    stored = read_mlmodel(root, "models:/zoo/1")
    uri = "models:/zoo/1"
    return SourceModel(
        "zoo", "1", uri, "run", stored.format, stored.signature, root, stored.path, "0" * 64
    )


@pytest.mark.usefixtures("home")
def test_stored__an_onnx_model__keeps_opset_and_dimension_names(tmp_path: Path) -> None:
    source = logged_onnx(tmp_path / "model", ("rows", 4))
    result = run(tmp_path, source, {"x": X})
    assert result.bundle.manifest.variant.opset == 17
    graph = onnx.load(str(result.bundle.path("model.onnx"))).graph
    assert graph.input[0].type.tensor_type.shape.dim[0].dim_param == "rows"


@pytest.mark.usefixtures("home")
def test_stored__an_onnx_model_for_two_rows__is_rejected(tmp_path: Path) -> None:
    with pytest.raises(MlctlError, match=r"does not run with inputs of shape x \[1, 4\]") as caught:
        run(tmp_path, logged_onnx(tmp_path / "model", (2, 4)), {"x": X})
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL
    assert "-1 only where it accepts any size" in caught.value.hint


def test_stored__a_signature_without_a_batch__is_rejected(tmp_path: Path) -> None:
    with pytest.raises(MlctlError, match=r"tensor 'x' has shape \[1, 4\]; its first") as caught:
        logged_onnx(tmp_path / "model", (1, 4), declared=(1, 4))
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL


def test_stored__a_scripted_module__is_rejected(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        scripted: Any = torch.jit.script(nn.Linear(4, 2))
    source = save_torch(tmp_path / "model", scripted, {"x": X}, ("y",), "pickle")
    with pytest.raises(MlctlError, match="is a TorchScript module") as caught:
        load_reference(source)
    assert "mlflow.onnx" in caught.value.hint


def test_stored__a_pickle_without_its_class__is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = save_torch(tmp_path / "model", models.Named(), {"x": X}, ("first", "second"), "pickle")
    monkeypatch.delattr(sys.modules[models.Named.__module__], "Named")
    with pytest.raises(MlctlError, match=r"cannot be loaded: .*Named") as caught:
        load_reference(source)
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL
    assert "Install the package" in caught.value.hint


def test_stored__traced_with_one_row__is_rejected(tmp_path: Path) -> None:
    source = save_torch(tmp_path / "model", nn.Linear(4, 2), {"x": X[:1]}, ("y",))
    with pytest.raises(MlctlError, match=r"does not run with inputs of shape x \[3, 4\]") as caught:
        load_reference(source).run({"x": X[:3]})
    assert "at least two rows" in caught.value.hint
