from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.proofs.adapter import adapt, order_outputs
from tests.optimize.zoo import models

ONE, TWO = torch.zeros(1), torch.ones(1)


@pytest.mark.parametrize(
    "outputs",
    [
        (ONE, TWO),
        [ONE, TWO],
        {"b": TWO, "a": ONE},
        {"x": ONE, "y": TWO},
        OrderedDict(b=TWO, c=None, a=ONE),
        ((ONE,), {"deep": [TWO, None]}),
        {"a": ONE, "b": TWO}.values(),
    ],
)
def test_order_outputs__tuple_list_or_dict__follows_the_names(outputs: Any) -> None:
    if not isinstance(outputs, (tuple, list, dict)):
        outputs = tuple(outputs)
    assert order_outputs(outputs, ["a", "b"]) == (ONE, TWO)


def test_order_outputs__a_single_tensor__is_the_only_output() -> None:
    assert order_outputs(ONE, ["a"]) == (ONE,)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (ONE, "returns 1 tensors, its signature names 2 outputs"),
        ({"a": ONE, "c": TWO}, r"returns \['a', 'c'\], its signature names \['a', 'b'\]"),
        ({"a": ONE, "b": TWO, "c": TWO}, r"returns \['a', 'b', 'c'\]"),
        ({"a": ONE, "b": (TWO,)}, "output 'b' of the model is a tuple, not a tensor"),
        ((ONE, 3), "output 'b' of the model is a int"),
    ],
)
def test_order_outputs__ambiguous__is_rejected(outputs: Any, message: str) -> None:
    with pytest.raises(MlctlError, match=message) as caught:
        order_outputs(outputs, ["a", "b"])
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL
    assert "Log the model again" in caught.value.hint


def test_adapt__parameters_named_as_inputs__are_called_by_name() -> None:
    spec = {"dtype": Datatype.FP32, "shape": (-1, 1)}
    for names, want in ((("right", "left"), 4.0), (("a", "b"), -4.0)):
        signature = Signature.model_validate(
            {
                "inputs": [{"name": name, **spec} for name in names],
                "outputs": [{"name": "y", **spec}],
            }
        )
        (answer,) = adapt(models.ByName(), signature)(torch.ones(1, 1), torch.full((1, 1), 5.0))
        assert float(answer) == want


def test_adapt__a_traced_module__is_called_by_position() -> None:
    tensors = (torch.ones(2, 1), torch.full((2, 1), 5.0))
    traced = torch.export.export(models.ByName(), tensors).module()
    specs = [
        TensorSpec(name=name, dtype=Datatype.FP32, shape=(-1, 1)) for name in ("right", "left")
    ]
    signature = Signature(inputs=tuple(specs), outputs=(specs[0].model_copy(update={"name": "y"}),))
    (answer,) = adapt(traced, signature)(*tensors)
    np.testing.assert_array_equal(answer.numpy(), [[-4], [-4]])
