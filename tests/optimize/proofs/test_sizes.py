from __future__ import annotations

import numpy as np

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.optimize.proofs.sizes import resized


def spec(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name=name, dtype=Datatype.INT64, shape=shape)


def signature(*inputs: TensorSpec) -> Signature:
    return Signature(inputs=inputs, outputs=(spec("y", -1),))


def test_resized__dimensions_of_one_size__change_together() -> None:
    ids = np.arange(8).reshape(2, 4)
    inputs = {"ids": ids, "mask": np.ones_like(ids), "extra": np.zeros((2, 4), np.int64)}
    cases = resized(
        signature(spec("ids", -1, -1), spec("mask", -1, -1), spec("extra", -1, 4)), inputs
    )
    assert [case.inputs["ids"].shape[1] for case in cases] == [3, 5, 2, 8]
    for case in cases:
        assert case.inputs["mask"].shape == case.inputs["ids"].shape
        assert case.inputs["extra"] is inputs["extra"]
        assert case.groups == {4}
    assert cases[1].inputs["ids"].tolist() == [[0, 1, 2, 3, 0], [4, 5, 6, 7, 4]]
    assert cases[1].words == "size 4 as 5"


def test_resized__several_groups__change_alone_and_together() -> None:
    inputs = {"image": np.zeros((1, 1, 2, 3), np.int64)}
    cases = resized(signature(spec("image", -1, 1, -1, -1)), inputs)
    shapes = [case.inputs["image"].shape[2:] for case in cases]
    assert shapes[:4] == [(1, 3), (3, 3), (1, 3), (4, 3)]
    assert shapes[4:8] == [(2, 2), (2, 4), (2, 1), (2, 6)]
    assert shapes[8:] == [(1, 2), (3, 4), (1, 1), (4, 6)]


def test_resized__a_dimension_of_one__is_never_empty() -> None:
    inputs = {"x": np.zeros((1, 1), np.int64)}
    cases = resized(signature(spec("x", -1, -1)), inputs)
    assert [case.inputs["x"].shape for case in cases] == [(1, 2), (1, 2)]


def test_resized__only_rows_are_dynamic__is_empty() -> None:
    assert resized(signature(spec("x", -1, 4)), {"x": np.zeros((3, 4), np.int64)}) == []
