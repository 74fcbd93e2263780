"""Models that have to be refused, each with what its author can do about it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from tests.optimize.zoo import models
from tests.optimize.zoo.prove import prove_signature, rejection, signature_of
from tests.support import torch_models

X = np.random.default_rng(3).standard_normal((12, 4), dtype=np.float32)
STEPS = np.random.default_rng(4).standard_normal((12, 5, 4), dtype=np.float32)


def test_rejected__control_flow_over_values__has_a_hint(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    error = rejection(tmp_path, torch_models.Branching(), {"x": X})
    # What the exporter prints of a half-made graph would corrupt `--json`.
    assert capfd.readouterr() == ("", "")
    assert "control flow depends on the values" in error.message
    assert "torch.cond" in error.hint


@pytest.mark.parametrize(
    ("module", "inputs", "dimension", "free"),
    [
        (torch_models.Looping(), {"x": X}, "dimension 0 of input 'x' became fixed at 3", {}),
        (
            models.Unrolled(),
            {"steps": STEPS},
            "dimension 1 of input 'steps' became fixed at 5",
            {"steps": (1,)},
        ),
        (
            models.Recurrent(),
            {"steps": STEPS},
            "dimension 1 of input 'steps' became fixed at 5",
            {"steps": (1,), "states": (1,)},
        ),
    ],
)
def test_rejected__a_fixed_size__is_named(
    tmp_path: Path,
    module: nn.Module,
    inputs: dict[str, np.ndarray],
    dimension: str,
    free: dict[str, tuple[int, ...]],
) -> None:
    outputs = ("states", "last") if isinstance(module, models.Recurrent) else ("y",)
    error = rejection(tmp_path, module, inputs, outputs, **free)
    assert error.code is ErrorCode.EXPORT_FAILED
    assert error.message.startswith(dimension)
    assert "loop" in error.message


def test_rejected__a_length_fixed_by_the_model__is_named(tmp_path: Path) -> None:
    error = rejection(tmp_path, models.FixedLength(), {"steps": STEPS}, steps=(1,))
    assert error.message.startswith("dimension 1 of input 'steps' became fixed at 5")


@pytest.mark.parametrize("module", [models.Noisy(), models.Dropping(), models.Counting()])
def test_rejected__answers_that_change__are_named(tmp_path: Path, module: nn.Module) -> None:
    error = rejection(tmp_path, module, {"x": X})
    assert error.code is ErrorCode.UNSUPPORTED_MODEL
    assert "differs between two runs" in error.message
    assert "evaluation mode" in error.hint


def test_training_mode__dropout__is_turned_off(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).train()
    signature = signature_of(module, {"x": X}, ("y",), {})
    assert prove_signature(tmp_path, module, {"x": X}, signature).independent


def test_rejected__nan_answers__are_named(tmp_path: Path) -> None:
    error = rejection(tmp_path, torch_models.Poisoned(), {"x": X})
    assert "NaN" in error.message


def test_rejected__another_number_of_rows__is_named(tmp_path: Path) -> None:
    error = rejection(tmp_path, torch_models.Doubling(), {"x": X})
    assert "has shape [2, 4] for 1 input rows" in error.message


def test_rejected__an_output_for_the_whole_batch__is_named(tmp_path: Path) -> None:
    signature = Signature(
        inputs=(spec("x", 4),),
        outputs=(spec("y", 4), TensorSpec(name="sum", dtype=Datatype.FP32, shape=(-1,))),
    )
    with pytest.raises(MlctlError, match=r"'sum' of the source model has shape \[\]"):
        prove_signature(tmp_path, models.Sorting(), {"x": X}, signature)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ((("y", Datatype.FP64, 4),), "dtype float32, its signature says float64"),
        ((("y", Datatype.FP32, 5),), r"shape \[1, 4\] for 1 input rows, .* says \[-1, 5\]"),
        ((("y", Datatype.FP32, 4), ("z", Datatype.FP32, 4)), "returns 1 tensors, .* 2 outputs"),
    ],
)
def test_rejected__a_signature_of_another_model__is_named(
    tmp_path: Path, outputs: tuple[tuple[str, Datatype, int], ...], message: str
) -> None:
    signature = Signature(
        inputs=(spec("x", 4),),
        outputs=tuple(
            TensorSpec(name=name, dtype=dtype, shape=(-1, size)) for name, dtype, size in outputs
        ),
    )
    with pytest.raises(MlctlError, match=message) as caught:
        prove_signature(tmp_path, nn.Identity(), {"x": X}, signature)
    assert "Log the model again" in caught.value.hint


def test_rejected__an_operator_without_onnx_form__is_named(tmp_path: Path) -> None:
    error = rejection(tmp_path, Custom(), {"x": X})
    assert "mlctl_zoo" in error.message
    assert "ONNX flavor" in error.hint


@torch.library.custom_op("mlctl_zoo::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Custom(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = twice(x)
        return out


def spec(name: str, size: int) -> TensorSpec:
    return TensorSpec(name=name, dtype=Datatype.FP32, shape=(-1, size))
