from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mlctl.bundle.arrays import Arrays
from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.core.errors import MlctlError
from mlctl.services.model.padding import LengthPadding
from mlctl.services.online.batching.executor import Outcome, run_joined


def request(*values: float) -> Arrays:
    return {"x": np.array(values)}


@dataclass(eq=False)
class Request:
    inputs: Arrays
    rows: int
    open: bool = True


def joined(
    run: Callable[[Arrays], Arrays],
    inputs: Sequence[Arrays],
    rows: Sequence[int],
    lengths: LengthPadding | None = None,
) -> list[Outcome]:
    requests = [Request(each, count) for each, count in zip(inputs, rows, strict=True)]
    return run_joined(run, requests, lengths)


class Model:
    def __init__(self) -> None:
        self.batches: list[list[float]] = []

    def run(self, inputs: Arrays) -> Arrays:
        self.batches.append(inputs["x"].tolist())
        if (inputs["x"] < 0).any():
            raise ValueError("negative")
        return {"y": inputs["x"] * 10}


def test_run_joined__several_requests__each_gets_its_rows() -> None:
    model = Model()
    outcomes = joined(model.run, [request(1, 2), request(3), request(4, 5)], [2, 1, 2])
    answers = [outcome["y"].tolist() for outcome in outcomes if isinstance(outcome, dict)]
    assert answers == [[10, 20], [30], [40, 50]]
    assert model.batches == [[1, 2, 3, 4, 5]]


def test_run_joined__one_bad_request__fails_alone() -> None:
    requests = [request(1), request(2), request(-3), request(4), request(5)]
    outcomes = joined(Model().run, requests, [1] * 5)
    assert [isinstance(outcome, ValueError) for outcome in outcomes] == [
        False, False, True, False, False,
    ]  # fmt: skip
    assert [o["y"].tolist() for o in outcomes if isinstance(o, dict)] == [
        [10],
        [20],
        [40],
        [50],
    ]


def test_run_joined__cancelled_requests__are_not_run_again() -> None:
    model = Model()

    def run(inputs: Arrays) -> Arrays:
        for number in (0, 1, 3):  # while the whole batch runs
            batch[number].open = False
        return model.run(inputs)

    batch = [Request(request(value), 1) for value in (1, 2, -3, 4)]
    outcomes = run_joined(run, batch)
    assert model.batches == [[1, 2, -3, 4], [-3, 4], [-3]]
    assert [type(outcome) for outcome in outcomes] == [
        MlctlError,
        MlctlError,
        ValueError,
        MlctlError,
    ]


def test_run_joined__other_shapes__are_run_apart() -> None:
    wide = {"x": np.array([[6.0, 7.0]])}
    outcomes = joined(Model().run, [request(1), wide], [1, 1])
    assert [o["y"].tolist() for o in outcomes if isinstance(o, dict)] == [[10], [[60, 70]]]


def test_run_joined__single_request__is_run_unchanged() -> None:
    model = Model()
    joined(model.run, [request(7, 8)], [2])
    assert model.batches == [[7, 8]]


def test_run_joined__empty_sequence__has_an_empty_answer() -> None:
    x, y = (
        TensorSpec(name=name, dtype=Datatype.FP64, shape=(DYNAMIC, DYNAMIC)) for name in ("x", "y")
    )
    lengths = LengthPadding(Signature(inputs=(x,), outputs=(y,)), {"x": 0.0})
    requests = [{"x": np.ones((1, length))} for length in (3, 0, 2)]
    outcomes = joined(Model().run, requests, [1, 1, 1], lengths)
    assert [o["y"].tolist() for o in outcomes if isinstance(o, dict)] == [
        [[10, 10, 10]], [[]], [[10, 10]],
    ]  # fmt: skip
