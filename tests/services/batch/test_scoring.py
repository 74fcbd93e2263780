"""What an answer looks like as a column, and which answers cannot be stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mlctl.bundle.manifest import Manifest
from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.answers import quarantine_schema, require_columns, result_schema
from mlctl.services.batch.filters import Filter
from mlctl.services.batch.scoring import PieceScorer, ScoringPlan
from mlctl.services.batch.units import Piece, ScoredPiece, Unit
from mlctl.services.model.scorer import Scorer
from mlctl.services.tables.input_columns import find_feeds
from tests.support.sessions import FunctionSession

SOURCE = pa.schema([("id", pa.int64()), ("x", pa.float32())])


def spec(name: str, dtype: Datatype, *shape: int) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=(-1, *shape))


QUARANTINE = quarantine_schema(SOURCE, SOURCE.names)
UNIT = Unit("u", "f", None)


def scorer_of(
    manifest: Manifest, outputs: tuple[TensorSpec, ...], function: Any, condition: str = ""
) -> PieceScorer:
    signature = Signature(inputs=(spec("x", Datatype.FP32),), outputs=outputs)
    manifest = manifest.model_copy(update={"signature": signature})
    scorer = Scorer(manifest, "d" * 64, FunctionSession(function))
    found = Filter(condition) if condition else None
    plan = ScoringPlan(find_feeds(SOURCE, signature, {}), ("id",), found)
    return PieceScorer(scorer, plan, result_schema(signature, SOURCE, ("id",)), QUARANTINE)


def piece(values: list[float | None], start: int = 0) -> Piece:
    table = pa.table({"id": range(len(values)), "x": pa.array(values, pa.float32())})
    return Piece(table, range(start, start + len(values)))


def bad_rows(result: ScoredPiece) -> list[tuple[int, str]]:
    rows = [] if result.quarantine is None else result.quarantine.to_pylist()
    return [(row["mlctl_row"], row["mlctl_reason"]) for row in rows]


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
def test_scoring__output__becomes_a_column_of_its_type(
    bundle: VerifiedBundle, output: TensorSpec, answer: Any, column: list[object]
) -> None:
    scorer = scorer_of(bundle.manifest, (output,), lambda feed: {"y": answer(feed["x"])})
    result = scorer.score(UNIT, piece([1.0, 2.0]))
    assert result.answers["y"].to_pylist() == column
    assert result.answers["id"].to_pylist() == [0, 1]


def test_scoring__missing_text__makes_its_row_bad(bundle: VerifiedBundle) -> None:
    scorer = scorer_of(
        bundle.manifest,
        (spec("y", Datatype.BYTES),),
        lambda _feed: {"y": np.array([b"a", b"\xff", b"c"], object)},
    )
    result = scorer.score(UNIT, piece([1.0, 2.0, 3.0], start=100))
    assert result.answers["y"].to_pylist() == ["a", "c"]
    assert bad_rows(result) == [(101, "the answer 'y' is not UTF-8 text")]
    assert result.quarantine is not None
    assert result.quarantine.select(["id", "x"]).to_pylist() == [{"id": 1, "x": 2.0}]


def test_scoring__failing_runtime__its_message_is_the_reason(bundle: VerifiedBundle) -> None:
    def fail(feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if (feed["x"] < 0).any():
            raise RuntimeError("negative index\nand more")
        return {"y": feed["x"]}

    scorer = scorer_of(bundle.manifest, (spec("y", Datatype.FP32),), fail)
    result = scorer.score(UNIT, piece([1.0, -1.0, None, 4.0]))
    assert result.answers["y"].to_pylist() == [1.0, 4.0]
    assert bad_rows(result) == [
        (1, "model 'tiny' failed on these inputs: negative index"),
        (2, "column 'x' is null"),
    ]


def test_scoring__defect_of_mlctl__blames_no_row(bundle: VerifiedBundle) -> None:
    scorer = scorer_of(bundle.manifest, (spec("y", Datatype.FP32),), lambda f: {"y": f["x"]})

    class Broken:
        provider = "memory"

        def run(self, _inputs: object) -> dict[str, np.ndarray]:
            raise NameError("a name of ours")

    assert isinstance(scorer.scorer, Scorer)
    scorer.scorer = Scorer(scorer.scorer.manifest, "d" * 64, Broken())
    with pytest.raises(MlctlError) as caught:
        scorer.score(UNIT, piece([1.0, 2.0]))
    assert caught.value.code is ErrorCode.INTERNAL
    assert isinstance(caught.value.__cause__, NameError)


def test_scoring__filtered_rows__keep_their_row_numbers(bundle: VerifiedBundle) -> None:
    outputs = (spec("y", Datatype.FP32),)
    scorer = scorer_of(bundle.manifest, outputs, lambda f: {"y": f["x"]}, "id >= 2")
    result = scorer.score(UNIT, piece([1.0, 2.0, None, 4.0], start=50))
    assert (result.skipped, result.answers["id"].to_pylist()) == (2, [3])
    assert bad_rows(result) == [(52, "column 'x' is null")]


@pytest.mark.parametrize("keep", ["y", "mlctl_digest", "no"])
def test_scoring__kept_column_missing_or_named_as_an_output__is_rejected(
    bundle: VerifiedBundle, keep: str
) -> None:
    source = pa.schema([("id", pa.int64()), ("y", pa.int64()), ("mlctl_digest", pa.string())])
    with pytest.raises(MlctlError, match=f"--keep {keep}") as caught:
        require_columns(source.names, bundle.manifest.signature, (keep,))
    assert caught.value.code is ErrorCode.INVALID_INPUT
