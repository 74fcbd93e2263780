"""What an answer looks like as a column, and which answers cannot be stored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bundle.clock import ManualClock
from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import Manifest
from bundle.tensors import Datatype, Signature, TensorSpec
from bundle.verify import VerifiedBundle
from services.batch.answers import result_schema
from services.batch.base import BadRow, Chunk, Unit
from services.batch.filters import Filter
from services.batch.scoring import ScoringPlan, UnitScorer
from services.runtime.scorer import Scorer
from services.runtime.tabular.input_columns import find_feeds
from tests.support.sessions import FunctionSession

SOURCE = pa.schema([("id", pa.int64()), ("x", pa.float32())])


def spec(name: str, dtype: Datatype, *shape: int) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=(-1, *shape))


def scorer_of(manifest: Manifest, outputs: tuple[TensorSpec, ...], function: Any) -> UnitScorer:
    signature = Signature(inputs=(spec("x", Datatype.FP32),), outputs=outputs)
    manifest = manifest.model_copy(update={"signature": signature})
    scorer = Scorer(manifest, "d" * 64, FunctionSession(function))
    recipe = ScoringPlan(find_feeds(SOURCE, signature, {}), ("id",))
    schema = result_schema(signature, SOURCE, ("id",))
    return UnitScorer(scorer, recipe, schema, clock=ManualClock(1_700_000_000.5))


def chunk(values: list[float | None], start: int = 0) -> Chunk:
    table = pa.table({"id": range(len(values)), "x": pa.array(values, pa.float32())})
    return Chunk(Unit("u", "f", start, len(values)), table)


@pytest.mark.parametrize(
    ("output", "answer", "column"),
    [
        (spec("y", Datatype.FP32), lambda x: x, [1.0, 2.0]),
        (spec("y", Datatype.INT64, 1), lambda x: x.astype(np.int64)[:, None], [1, 2]),
        (spec("y", Datatype.BOOL), lambda x: x > 1, [False, True]),
        (spec("y", Datatype.FP16, 2), lambda x: np.stack([x, -x], 1).astype(np.float16),
         [[1.0, -1.0], [2.0, -2.0]]),
        (spec("y", Datatype.UINT8, 2, 1), lambda x: np.stack([x, x], 1)[:, :, None].astype("u1"),
         [[1, 1], [2, 2]]),
        (spec("y", Datatype.FP32, -1), lambda x: np.stack([x, x, x], 1), [[1.0] * 3, [2.0] * 3]),
        (spec("y", Datatype.BYTES), lambda _x: np.array(["é".encode(), b""], object), ["é", ""]),
        (spec("y", Datatype.BYTES, 2), lambda _x: np.array([[b"a", b"b"], [b"c", b"d"]], object),
         [["a", "b"], ["c", "d"]]),
    ],
)  # fmt: skip
def test_an_output_is_a_column_of_its_type(
    bundle: VerifiedBundle, output: TensorSpec, answer: Any, column: list[object]
) -> None:
    scorer = scorer_of(bundle.manifest, (output,), lambda feed: {"y": answer(feed["x"])})
    result = scorer.score(chunk([1.0, 2.0]))
    assert result.table.schema == scorer.schema
    assert result.table["y"].to_pylist() == column
    assert result.table["id"].to_pylist() == [0, 1]
    assert {when.timestamp() for when in result.table["mlctl_scored_at"].to_pylist()} == {
        1_700_000_000.5
    }


def test_text_that_is_none_makes_its_row_bad(bundle: VerifiedBundle) -> None:
    scorer = scorer_of(
        bundle.manifest,
        (spec("y", Datatype.BYTES),),
        lambda _feed: {"y": np.array([b"a", b"\xff", b"c"], object)},
    )
    result = scorer.score(chunk([1.0, 2.0, 3.0], start=100))
    assert result.table["y"].to_pylist() == ["a", "c"]
    assert result.bad == (BadRow(101, "the answer 'y' is not UTF-8 text", {"id": 1, "x": 2.0}),)


def test_a_failing_runtime_is_told_with_its_words(bundle: VerifiedBundle) -> None:
    def fail(feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if (feed["x"] < 0).any():
            raise RuntimeError("negative index\nand more")
        return {"y": feed["x"]}

    scorer = scorer_of(bundle.manifest, (spec("y", Datatype.FP32),), fail)
    result = scorer.score(chunk([1.0, -1.0, None, 4.0]))
    assert result.table["y"].to_pylist() == [1.0, 4.0]
    assert [(bad.row, bad.reason) for bad in result.bad] == [
        (1, "model 'tiny' failed on these inputs: negative index"),
        (2, "column 'x' is null"),
    ]


def test_a_defect_of_ours_is_no_rows_fault(bundle: VerifiedBundle) -> None:
    scorer = scorer_of(bundle.manifest, (spec("y", Datatype.FP32),), lambda f: {"y": f["x"]})

    class Broken:
        provider = "memory"

        def run(self, _inputs: object) -> dict[str, np.ndarray]:
            raise NameError("a name of ours")

    assert isinstance(scorer.scorer, Scorer)
    broken = Scorer(scorer.scorer.manifest, "d" * 64, Broken())
    with pytest.raises(MlctlError) as caught:
        replace(scorer, scorer=broken).score(chunk([1.0, 2.0]))
    assert caught.value.code is ErrorCode.INTERNAL
    assert isinstance(caught.value.__cause__, NameError)


def test_rows_keep_their_numbers_behind_a_filter(bundle: VerifiedBundle) -> None:
    scorer = scorer_of(bundle.manifest, (spec("y", Datatype.FP32),), lambda f: {"y": f["x"]})
    recipe = ScoringPlan(scorer.recipe.feeds, ("id",), Filter("id >= 2"))
    result = UnitScorer(scorer.scorer, recipe, scorer.schema).score(
        chunk([1.0, 2.0, None, 4.0], start=50)
    )
    assert (result.skipped, result.table["id"].to_pylist()) == (2, [3])
    assert [bad.row for bad in result.bad] == [52]


@pytest.mark.parametrize("keep", ["y", "mlctl_digest", "no"])
def test_a_kept_column_must_be_there_and_of_its_own_name(bundle: VerifiedBundle, keep: str) -> None:
    source = pa.schema([("id", pa.int64()), ("y", pa.int64()), ("mlctl_digest", pa.string())])
    with pytest.raises(MlctlError, match=f"--keep {keep}") as caught:
        result_schema(bundle.manifest.signature, source, (keep,))
    assert caught.value.code is ErrorCode.INVALID_INPUT
