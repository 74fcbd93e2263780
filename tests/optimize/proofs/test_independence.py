from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.optimize.data import Rows
from mlctl.optimize.proofs.independence import beside_longest, is_row_independent
from mlctl.optimize.proofs.reference import TorchReference
from tests.optimize.zoo import models

NUMBERS = np.random.default_rng(6).standard_normal((20, 4), dtype=np.float32)


def independent(module: nn.Module, rows: np.ndarray) -> bool:
    spec = TensorSpec(
        name="x",
        dtype=Datatype.from_numpy_name(rows.dtype.name),
        shape=(-1, *rows.shape[1:]),
    )
    out = TensorSpec(name="y", dtype=Datatype.FP32, shape=(-1,))
    reference = TorchReference(module.eval(), Signature(inputs=(spec,), outputs=(out,)))
    return is_row_independent(reference, Rows({"x": rows}, None))


@pytest.mark.parametrize(
    "module",
    [
        models.TrainedNorm(),
        models.Touching(1.0),
        models.Touching(1e-5),
        models.Clipping(),
        models.Summing(),
    ],
)
@pytest.mark.parametrize("rows", [NUMBERS, np.repeat(NUMBERS[:1], 20, axis=0)])
def test_independence__a_small_influence_on_equal_rows__is_found(
    module: nn.Module, rows: np.ndarray
) -> None:
    assert not independent(module, rows)


@pytest.mark.parametrize(
    "module",
    [nn.Identity(), nn.Sequential(nn.Linear(4, 300), nn.Tanh(), nn.Linear(300, 3))],
)
def test_independence__independent_rows__are_found(module: nn.Module) -> None:
    assert independent(module, NUMBERS)
    assert independent(module, NUMBERS * 1e6)


class Checked(nn.Module):
    """Looks categories up, so that numbers beyond those of the data are an error."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.table(x.long()).sum((1, 2))
        return out


def test_independence__rejected_neighbours__prove_nothing() -> None:
    codes = np.random.default_rng(1).integers(1, 5, (20, 2))
    assert independent(Checked(), codes.astype(np.float32))
    assert independent(Checked(), codes)


class Switching(nn.Module):
    """One category in any row changes the answer for all of them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where((x == 4).any(), -x, x).float().sum(1)


def test_independence__a_rare_category__is_tried() -> None:
    codes = np.random.default_rng(1).integers(0, 4, (40, 2))
    codes[33, 1] = 4
    assert not independent(Switching(), codes)


@pytest.mark.parametrize("rows", [1, 3])
def test_beside_longest__texts__begin_with_the_longest_and_its_first_word(rows: int) -> None:
    texts = np.array([b"good food", b"never good food", b""][:rows], object)
    numbers = np.arange(rows)
    found = beside_longest({"text": texts, "number": numbers})
    longest = max(texts, key=len)
    assert found["text"].tolist() == [longest, longest.split()[0], *texts]
    assert found["number"].tolist() == [0, 1 % rows, *numbers]
