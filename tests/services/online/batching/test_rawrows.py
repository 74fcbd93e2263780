from dataclasses import dataclass

import numpy as np
import pytest

from bundle.errors import MlctlError
from bundle.tensors import DYNAMIC, Datatype, TensorSpec
from services.online.batching.joining import Inputs, cut, run_joined
from services.online.batching.rawrows import Form, arrays_of, join_raw
from services.protocol.wire import declare
from services.runtime.padding import Arrays

SPECS = {
    "x": TensorSpec(name="x", dtype=Datatype.FP32, shape=(DYNAMIC, 2)),
    "n": TensorSpec(name="n", dtype=Datatype.INT16, shape=(DYNAMIC,)),
}


@dataclass
class Raw:
    form: Form
    data: bytes


def raw(first: float, rows: int, *, order: str = "xn") -> tuple[Raw, Arrays]:
    """A request as it came, and what it means; each has its inputs in an order of its own."""
    arrays: Arrays = {
        "x": np.arange(first, first + 2 * rows, dtype=np.float32).reshape(rows, 2),
        "n": np.full(rows, first, np.int16),
    }
    data, places = b"head", {}
    for name in order:
        content = arrays[name].tobytes()
        places[name] = slice(len(data), len(data) + len(content))
        data += content
    declared = {
        name: declare(SPECS, name, SPECS[name].dtype.value, list(arrays[name].shape))
        for name in order
    }
    return Raw(Form(declared, places), data), arrays


def test_bytes_become_what_was_sent() -> None:
    request, arrays = raw(3, 2)
    found = arrays_of(request)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    assert arrays_of(arrays) is arrays


def test_joined_bytes_are_joined_arrays() -> None:
    asked = [raw(1, 1), raw(5, 3, order="nx"), raw(20, 2)]
    joined = join_raw([request for request, _ in asked])
    for name in SPECS:
        expected = np.concatenate([arrays[name] for _, arrays in asked])
        assert joined[name].dtype == expected.dtype
        assert joined[name].flags.writeable  # as what is concatenated
        np.testing.assert_array_equal(joined[name], expected)


def test_bytes_of_a_wrong_length_are_refused() -> None:
    request, _ = raw(1, 2)
    with pytest.raises(MlctlError, match="bytes of data"):
        arrays_of(Raw(request.form, request.data[:-1]))


@pytest.mark.parametrize("bad", [None, 1])
def test_requests_of_both_kinds_share_a_batch(bad: int | None) -> None:
    """And a bad one fails alone, whatever kind it is of."""
    first, plain, last = raw(1, 1), raw(5, 2), raw(9, 1)
    requests: list[Inputs] = [first[0], plain[1], last[0]]

    def run(inputs: Arrays) -> Arrays:
        if bad is not None and (inputs["n"] == bad).any():
            raise ValueError("bad")
        return {"sum": inputs["x"].sum(axis=1) + inputs["n"]}

    outcomes = run_joined(run, requests, [1, 2, 1])
    for outcome, (_, arrays) in zip(outcomes, (first, plain, last), strict=True):
        if arrays["n"][0] == bad:
            assert isinstance(outcome, ValueError)
        else:
            assert isinstance(outcome, tuple)
            expected = arrays["x"].sum(axis=1) + arrays["n"]
            np.testing.assert_array_equal(cut(outcome)["sum"], expected)
