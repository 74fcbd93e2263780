"""Models that have to pass, each with the trap that it sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from tests.optimize.zoo import models
from tests.optimize.zoo.prove import Arrays, Proved, prove

ROWS = 12


@pytest.fixture(autouse=True)
def _same_weights() -> None:
    torch.manual_seed(5)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(11).standard_normal((ROWS, *shape), dtype=np.float32)


def tokens(length: int, rows: int = ROWS) -> Arrays:
    generator = np.random.default_rng(length)
    mask = (np.arange(length) < generator.integers(1, length + 1, (rows, 1))).astype(np.int64)
    return {"ids": generator.integers(0, 50, (rows, length)) * mask, "mask": mask}


def assert_same(proved: Proved, inputs: Arrays) -> None:
    want, have = proved.reference.run(inputs), proved.run(inputs)
    for name, array in want.items():
        np.testing.assert_allclose(have[name], array, atol=1e-5)


@pytest.mark.slow
def test_accepted__an_encoder__keeps_batch_and_sequence_dynamic(tmp_path: Path) -> None:
    free = {"ids": (1,), "mask": (1,), "tokens": (1,)}
    proved = prove(tmp_path, models.Encoder(), tokens(6), ("embedding", "tokens"), **free)
    assert proved.independent
    # The public name is the one that the embedding layer's output has inside.
    assert list(proved.run(tokens(3))) == ["embedding", "tokens"]
    for length, rows in ((1, 1), (2, 5), (31, 2)):
        assert_same(proved, tokens(length, rows))


def test_accepted__batch_norm__is_folded_into_convolutions(tmp_path: Path) -> None:
    proved = prove(tmp_path, models.Residual(), {"image": random(3, 8, 8)}, ("logits",))
    assert proved.independent
    assert "BatchNormalization" not in proved.operators


def test_accepted__image_bytes__are_inputs(tmp_path: Path) -> None:
    image = np.random.default_rng(2).integers(0, 256, (ROWS, 3, 8, 8), dtype=np.uint8)
    assert prove(tmp_path, models.Pixels(), {"image": image}, ("logits",)).independent


@pytest.mark.slow
def test_accepted__recurrent_layers__with_a_fixed_length(tmp_path: Path) -> None:
    proved = prove(tmp_path, models.Recurrent(), {"steps": random(5, 4)}, ("states", "last"))
    assert proved.independent
    assert {"LSTM", "GRU"} <= proved.operators


def test_accepted__doubles_flags_and_categories__keep_their_types(tmp_path: Path) -> None:
    generator = np.random.default_rng(4)
    inputs = {
        "numbers": generator.standard_normal((ROWS, 4)),
        "flags": generator.random((ROWS, 2)) > 0.5,
        "category": generator.integers(0, 7, ROWS),
    }
    proved = prove(tmp_path, models.Mixed(), inputs, ("scores", "yes", "class"))
    assert proved.independent
    answers = proved.run(inputs)
    assert {name: array.dtype.name for name, array in answers.items()} == {
        "scores": "float64",
        "yes": "bool",
        "class": "int64",
    }
    assert answers["yes"].shape == (ROWS,)


def test_accepted__a_named_tuple__is_read_by_name(tmp_path: Path) -> None:
    proved = prove(tmp_path, models.Named(), {"x": random(3)}, ("first", "second"))
    answers = proved.run({"x": np.ones((1, 3), np.float32)})
    assert answers["first"][0, 0] == 2
    assert answers["second"][0, 0] == 2


def test_accepted__nested_outputs__are_flattened_in_order(tmp_path: Path) -> None:
    proved = prove(tmp_path, models.Nested(), {"x": random(3)}, ("double", "triple", "more"))
    answers = proved.run({"x": np.full((1, 1), 5, np.float32).repeat(3, 1)})
    assert [array[0, 0] for array in answers.values()] == [10, 15, 6]


def test_accepted__names_also_used_inside__stay_public(tmp_path: Path) -> None:
    inputs = {"linear": random(4), "ids": np.arange(ROWS) % 9}
    names = ("embedding", "module.linear.weight")
    proved = prove(tmp_path, models.Clashing(), inputs, names)
    graph = onnx.load(str(proved.path)).graph
    assert [value.name for value in graph.input] == ["linear", "ids"]
    assert [value.name for value in graph.output] == list(names)


def test_accepted__an_input__may_be_an_output_or_unused(tmp_path: Path) -> None:
    inputs = {"x": random(3), "unused": random(2)}
    proved = prove(tmp_path, models.Passing(), inputs, ("same", "again", "double"))
    assert len(proved.run(inputs)) == 3


def test_accepted__writing_into_an_input__changes_no_answer(tmp_path: Path) -> None:
    inputs = {"x": random(3)}
    proved = prove(tmp_path, models.Writing(), inputs, ("y",))
    np.testing.assert_allclose(proved.run(inputs)["y"], (random(3) + 1) * 2, rtol=1e-6)


def test_accepted__torch_cond__keeps_both_branches(tmp_path: Path) -> None:
    proved = prove(tmp_path, models.Branching(), {"x": random(3)}, ("y",))
    # The sum is over all rows: which branch it is depends on the neighbours.
    assert not proved.independent
    assert "If" in proved.operators
    one = np.ones((1, 3), np.float32)
    assert proved.run({"x": one})["y"][0, 0] == 2
    assert proved.run({"x": -one})["y"][0, 0] == -2


def test_accepted__only_some_sizes__are_tried(tmp_path: Path) -> None:
    free = {"image": (2, 3), "map": (1, 2)}
    proved = prove(tmp_path, models.Image(), {"image": random(1, 8, 12)}, ("map",), **free)
    assert_same(proved, {"image": random(1, 16, 4)})
