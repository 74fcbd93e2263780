from functools import partial

import numpy as np

from bundle.errors import MlctlError
from bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from services.online.batching.joining import Arrays, cut, run_joined
from services.runtime.padding import LengthPadding


def request(*values: float) -> Arrays:
    return {"x": np.array(values)}


class Model:
    def __init__(self) -> None:
        self.batches: list[list[float]] = []

    def run(self, inputs: Arrays) -> Arrays:
        self.batches.append(inputs["x"].tolist())
        if (inputs["x"] < 0).any():
            raise ValueError("negative")
        return {"y": inputs["x"] * 10}


def test_each_request_gets_its_own_rows() -> None:
    model = Model()
    outcomes = run_joined(model.run, [request(1, 2), request(3), request(4, 5)], [2, 1, 2])
    answers = [cut(outcome)["y"].tolist() for outcome in outcomes if isinstance(outcome, tuple)]
    assert answers == [[10, 20], [30], [40, 50]]
    assert model.batches == [[1, 2, 3, 4, 5]]


def test_a_bad_request_fails_alone() -> None:
    requests = [request(1), request(2), request(-3), request(4), request(5)]
    outcomes = run_joined(Model().run, requests, [1] * 5)
    assert [isinstance(outcome, ValueError) for outcome in outcomes] == [
        False, False, True, False, False,
    ]  # fmt: skip
    assert [cut(o)["y"].tolist() for o in outcomes if isinstance(o, tuple)] == [
        [10],
        [20],
        [40],
        [50],
    ]


def test_who_left_is_not_run_again_to_find_the_bad_one() -> None:
    model = Model()
    left = set[int]()

    def run(inputs: Arrays) -> Arrays:
        left.update({0, 1, 3})  # while the whole batch runs
        return model.run(inputs)

    requests = [request(1), request(2), request(-3), request(4)]
    gone = [partial(left.__contains__, number) for number in range(4)]
    outcomes = run_joined(run, requests, [1] * 4, None, gone)
    assert model.batches == [[1, 2, -3, 4], [-3, 4], [-3]]
    assert [type(outcome) for outcome in outcomes] == [
        MlctlError,
        MlctlError,
        ValueError,
        MlctlError,
    ]


def test_requests_that_cannot_be_joined_are_run_apart() -> None:
    wide = {"x": np.array([[6.0, 7.0]])}
    outcomes = run_joined(Model().run, [request(1), wide], [1, 1])
    assert [cut(o)["y"].tolist() for o in outcomes if isinstance(o, tuple)] == [[10], [[60, 70]]]


def test_a_request_alone_is_run_as_it_is() -> None:
    model = Model()
    run_joined(model.run, [request(7, 8)], [2])
    assert model.batches == [[7, 8]]


def test_an_empty_sequence_gets_an_empty_answer_in_any_company() -> None:
    x, y = (
        TensorSpec(name=name, dtype=Datatype.FP64, shape=(DYNAMIC, DYNAMIC)) for name in ("x", "y")
    )
    lengths = LengthPadding(Signature(inputs=(x,), outputs=(y,)), {"x": 0.0})
    requests = [{"x": np.ones((1, length))} for length in (3, 0, 2)]
    outcomes = run_joined(Model().run, requests, [1, 1, 1], lengths)
    assert [cut(o)["y"].tolist() for o in outcomes if isinstance(o, tuple)] == [
        [[10, 10, 10]], [[]], [[10, 10]],
    ]  # fmt: skip
