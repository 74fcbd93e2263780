from collections.abc import Mapping

import numpy as np
import pytest

from mlctl.bundle.arrays import Arrays
from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.services.model.padding import LengthPadding, RowPaddedSession, shape_key
from tests.services.online.batching.test_joining import joined
from tests.support.sessions import FunctionSession


def spec(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name=name, dtype=Datatype.INT64, shape=shape)


TEXT = Signature(
    inputs=(spec("ids", DYNAMIC, DYNAMIC), spec("mask", DYNAMIC, DYNAMIC), spec("kind", DYNAMIC)),
    outputs=(spec("tags", DYNAMIC, DYNAMIC), spec("sum", DYNAMIC), spec("pair", DYNAMIC, 4)),
)
LENGTHS = LengthPadding(TEXT, {"ids": 7, "mask": 0})


def text(*ids: int, rows: int = 1) -> dict[str, np.ndarray]:
    row = np.array([ids] * rows, np.int64).reshape(rows, len(ids))
    return {"ids": row, "mask": np.ones_like(row), "kind": np.zeros(rows, np.int64)}


def tag(inputs: Mapping[str, np.ndarray]) -> Arrays:
    """Doubles each id; sums those that are not masked; the pair has as many columns as ids may."""
    ids, mask = inputs["ids"], inputs["mask"]
    total = (ids * mask).sum(axis=1)
    return {"tags": ids * 2, "sum": total, "pair": np.stack([total] * 4, axis=1)}


def test_key__lengths_of_one_bucket__are_equal() -> None:
    assert LENGTHS.key(text(1)) == LENGTHS.key(text(*range(16)))
    assert LENGTHS.key(text(*range(17))) == LENGTHS.key(text(*range(32)))
    assert LENGTHS.key(text(*range(16))) != LENGTHS.key(text(*range(17)))
    assert LENGTHS.key(text(1)) == LENGTHS.key(dict(reversed(text(2, 3).items())))
    odd = {**text(1), "kind": np.zeros((1, 2), np.int64)}
    assert LENGTHS.key(text(1)) != LENGTHS.key(odd)


def test_key__sequences_of_unequal_length__join_only_equal_ones() -> None:
    odd = {**text(1, 2, 3), "mask": np.ones((1, 2), np.int64)}
    assert LENGTHS.length(odd) is None
    assert LENGTHS.key(odd) == shape_key(odd)
    assert LENGTHS.pad_to(odd, 9) is odd
    answers = joined(lambda inputs: {"n": inputs["ids"]}, [odd, odd], [1, 1], LENGTHS)
    assert [share["n"].shape for share in answers if isinstance(share, dict)] == [(1, 3)] * 2


def test_run_joined__padded_requests__get_their_own_answers() -> None:
    # Four ids are as many as `pair` has columns: only what has a dynamic length is cut.
    requests = [text(1, 2), text(1, 2, 3, 4, rows=2), text(5)]
    seen: list[np.ndarray] = []

    def run(inputs: Arrays) -> Arrays:
        seen.append(inputs["ids"])
        return tag(inputs)

    outcomes = joined(run, requests, [1, 2, 1], LENGTHS)
    assert seen[0].tolist() == [[1, 2, 7, 7], [1, 2, 3, 4], [1, 2, 3, 4], [5, 7, 7, 7]]
    for outcome, request in zip(outcomes, requests, strict=True):
        assert isinstance(outcome, dict)
        for name, want in tag(request).items():
            np.testing.assert_array_equal(outcome[name], want)


def test_pad_to__longer__keeps_the_datatype() -> None:
    padded = LENGTHS.pad_to(text(1, 2), 3)
    assert padded["ids"].dtype == np.int64
    assert padded["ids"].tolist() == [[1, 2, 7]]
    assert padded["kind"].tolist() == [0]


@pytest.mark.parametrize(("rows", "seen"), [(1, 1), (2, 4), (4, 4), (5, 8), (9, 9)])
def test_row_padded_session__any_rows__runs_bucket_sizes_only(rows: int, seen: int) -> None:
    sizes: list[int] = []

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        sizes.append(inputs["x"].shape[0])
        return {"y": inputs["x"] * 2, "constant": np.array(3.0)}

    session = RowPaddedSession(FunctionSession(run), (1, 4, 8))
    x = np.arange(float(rows)).reshape(rows, 1)
    outputs = session.run({"x": x})
    np.testing.assert_array_equal(outputs["y"], x * 2)
    assert outputs["constant"] == 3.0
    assert sizes == [seen]
    assert session.provider == "memory"
