"""Steps with a thread for each: they overlap, keep the order, and end with the first error."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bundle.verify import VerifiedBundle
from services.batch.base import Chunk, SourceRequest, Unit, UnitResult
from services.batch.job import BatchConfig, Scoring, make_job, make_recipe
from services.batch.pipeline_executor import PipelineExecutor
from services.batch.sources import open_source
from tests.support import tables
from tests.support.wait import PATIENCE_SECONDS

EMPTY = pa.table({"id": pa.array([], pa.int64())})


def chunks(count: int) -> Iterator[Chunk]:
    for index in range(count):
        yield Chunk(Unit(f"{index:03}", "here", index, 1), EMPTY)


def result(chunk: Chunk) -> UnitResult:
    return UnitResult(chunk.unit, EMPTY)


def test_each_step_works_on_another_unit_at_the_same_time() -> None:
    together = threading.Barrier(3, timeout=PATIENCE_SECONDS)

    def step(first: int) -> Any:
        def work(chunk: Chunk) -> Chunk:
            # While all three have a unit they wait for each other: one alone would wait in vain.
            if first <= chunk.unit.start < first + 8:
                together.wait()
            return chunk

        return work

    def last(chunk: Chunk) -> UnitResult:
        step(0)(chunk)
        return result(chunk)

    found = list(PipelineExecutor((step(2), step(1), last)).results(chunks(10)))
    assert [each.unit.start for each in found] == list(range(10))


def test_an_error_of_a_step_ends_it_after_the_units_before() -> None:
    def fails(chunk: Chunk) -> Chunk:
        if chunk.unit.start == 4:
            raise ValueError("the fifth")
        return chunk

    results = PipelineExecutor((lambda chunk: chunk, fails, result)).results(chunks(10))
    found: list[int] = []
    with pytest.raises(ValueError, match="the fifth"):
        found.extend(each.unit.start for each in results)
    assert found == [0, 1, 2, 3]


def test_no_more_than_one_unit_for_each_step_and_one_more_is_read() -> None:
    taken: list[int] = []

    def watched() -> Iterator[Chunk]:
        for chunk in chunks(50):
            taken.append(chunk.unit.start)
            yield chunk

    same = PipelineExecutor((lambda chunk: chunk, lambda chunk: chunk, result))
    results = same.results(watched())
    for count, _each in enumerate(results):
        assert max(taken) <= count + 5
        if count == 20:
            break
    results.close()
    assert max(taken) < 40


def test_the_steps_of_a_scorer_give_what_it_gives_in_one_go(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    tables.write_rows(tmp_path / "in.parquet", 3_000)
    source = open_source(SourceRequest(str(tmp_path / "in.parquet"), 500))
    wanted = BatchConfig(keep=("id",))
    recipe = make_recipe(bundle, source.schema, wanted)
    schema = make_job(bundle, source, recipe, wanted, "tiny").schema
    scorer = Scoring(bundle, recipe, schema).open()
    executor = PipelineExecutor((scorer.prepare, scorer.run, scorer.finish))
    results = list(executor.results(source.scan(["id", "x"], frozenset())))
    plain = [scorer.score(chunk) for chunk in source.scan(["id", "x"], frozenset())]
    for one, other in zip(results, plain, strict=True):
        assert one.unit == other.unit
        dropped = [each.table.drop_columns("mlctl_scored_at") for each in (one, other)]
        assert dropped[0].equals(dropped[1])
