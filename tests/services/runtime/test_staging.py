"""Copies ahead of a device, with the host as the device: ONNX Runtime reads what lies there."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.manifest import MODEL_NAME
from bundle.tensors import Datatype, Signature, TensorSpec
from bundle.verify import VerifiedBundle
from services.batch.base import SourceRequest
from services.batch.executors.pipeline import PipelineExecutor
from services.batch.job import Scoring, Wanted, executor_of, make_job, make_recipe
from services.batch.scoring import UnitScorer
from services.batch.sources import open_source
from services.runtime.faults import RunError
from services.runtime.scorer import Scorer
from services.runtime.session import OnnxSession, open_session
from services.runtime.staging import Staging, can_stage
from services.tensorrt.cuda import Driver, Gpu
from tests.services.tensorrt.test_cuda import HostDriver
from tests.support import tables

CALL_ROWS = 96


def staging_of(bundle: VerifiedBundle, library: HostDriver, session: Any = None) -> Staging:
    session = session or open_session(bundle.path(MODEL_NAME))
    driver = Driver(library)
    signature = bundle.manifest.signature
    return Staging(session, signature, CALL_ROWS, Gpu(driver), Gpu(driver), "cpu")


def unit_scorer(bundle: VerifiedBundle, source: Any) -> UnitScorer:
    recipe = make_recipe(bundle, source.schema, Wanted(keep=("id",)))
    job = make_job(bundle, source, recipe, Wanted(keep=("id",)), "here")
    return Scoring(bundle, recipe, job.schema).open()


@pytest.mark.parametrize("rows", [1, CALL_ROWS, CALL_ROWS + 1, 5 * CALL_ROWS - 7])
def test_answers_are_those_of_a_plain_run(bundle: VerifiedBundle, rows: int) -> None:
    library = HostDriver()
    staging = staging_of(bundle, library)
    plain = open_session(bundle.path(MODEL_NAME))
    for seed in range(3):
        x = tables.inputs(rows, seed)
        loaded = staging.load({"x": x})
        staging.run(loaded)
        np.testing.assert_array_equal(staging.fetch(loaded)["y"], plain.run({"x": x})["y"])
    # The same memory each time: two buffers here, two there.
    assert len(library.memory) == 4
    del staging, loaded
    gc.collect()
    assert not library.memory


def test_work_that_is_loaded_ahead_keeps_apart(bundle: VerifiedBundle) -> None:
    staging = staging_of(bundle, HostDriver())
    plain = open_session(bundle.path(MODEL_NAME))
    given = [tables.inputs(200, seed) for seed in range(3)]
    loaded = [staging.load({"x": x}) for x in given]
    for each in reversed(loaded):
        staging.run(each)
    for x, each in zip(given, loaded, strict=True):
        np.testing.assert_array_equal(staging.fetch(each)["y"], plain.run({"x": x})["y"])


def test_a_pipeline_on_a_device_gives_the_answers_of_the_host(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    tables.write_rows(tmp_path / "in.parquet", 3_000)
    source = open_source(SourceRequest(str(tmp_path / "in.parquet"), 500))
    scorer = unit_scorer(bundle, source)
    library = HostDriver()
    staged = replace(scorer, staging=staging_of(bundle, library))
    executor = PipelineExecutor((staged.prepare, staged.run, staged.finish))
    results = list(executor.results(source.scan(["id", "x"], frozenset())))
    plain = [scorer.score(chunk) for chunk in source.scan(["id", "x"], frozenset())]
    for one, other in zip(results, plain, strict=True):
        assert one.unit == other.unit
        dropped = [each.table.drop_columns("mlctl_scored_at") for each in (one, other)]
        assert dropped[0].equals(dropped[1])
    # At most four units are under way, with two buffers here and two there.
    assert 4 <= len(library.memory) <= 16


def test_rows_that_fail_on_the_device_are_found_and_the_others_are_answered(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    class Failing:
        """Fails where a row's first value is above 1."""

        provider = "cpu"

        def __init__(self) -> None:
            self.inner = open_session(bundle.path(MODEL_NAME))

        def run(self, inputs: Any) -> dict[str, np.ndarray]:
            if (inputs["x"][:, 0] > 1).any():
                raise RunError("above one")
            return self.inner.run(inputs)

        def binding(self) -> Any:
            assert isinstance(self.inner, OnnxSession)
            return self.inner.binding()

        def run_bound(self, _binding: Any) -> None:
            raise RunError("some row of these")

    x = tables.write_rows(tmp_path / "in.parquet", 300)
    source = open_source(SourceRequest(str(tmp_path / "in.parquet"), 300))
    scorer, library = unit_scorer(bundle, source), HostDriver()
    session = Failing()
    failing = Scorer(bundle.manifest, bundle.digest, session)
    staged = replace(scorer, scorer=failing, staging=staging_of(bundle, library, session))
    (chunk,) = source.scan(["id", "x"], frozenset())
    result = staged.score(chunk)
    bad = np.flatnonzero(x[:, 0] > 1).tolist()
    assert len(bad) > 10
    assert [row.row for row in result.bad] == bad
    assert all(row.reason.endswith("failed on these inputs: above one") for row in result.bad)
    assert result.table["id"].to_pylist() == sorted(set(range(300)) - set(bad))
    staged.score(chunk)
    assert len(library.memory) == 4


def test_only_rows_of_one_size_have_a_place_on_the_device(bundle: VerifiedBundle) -> None:
    plain = bundle.manifest.signature
    assert can_stage(plain)
    for dtype, shape in ((Datatype.BYTES, (-1,)), (Datatype.FP32, (-1, -1))):
        odd = TensorSpec(name="odd", dtype=dtype, shape=shape)
        assert not can_stage(Signature(inputs=(*plain.inputs, odd), outputs=plain.outputs))


def test_only_a_session_on_cuda_takes_addresses(bundle: VerifiedBundle) -> None:
    session = open_session(bundle.path(MODEL_NAME))
    assert Scorer(bundle.manifest, bundle.digest, session).bindable is None
    session.provider = "cuda"
    assert Scorer(bundle.manifest, bundle.digest, session).bindable is session


@pytest.mark.gpu
def test_a_gpu_is_given_its_rows_ahead_and_answers_as_it_does_without(
    bundle: VerifiedBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLCTL_PROVIDER", "cuda")
    x = tables.write_rows(tmp_path / "in.parquet", 20_000)
    source = open_source(SourceRequest(str(tmp_path / "in.parquet"), 1_000))
    scorer = unit_scorer(bundle, source)
    assert scorer.staging is not None
    executor = executor_of(scorer, None)
    assert isinstance(executor, PipelineExecutor)
    results = list(executor.results(source.scan(["id", "x"], frozenset())))
    plain = open_session(bundle.path(MODEL_NAME), "cuda").run({"x": x})["y"]
    found = np.concatenate([tables.matrix(each.table["y"]) for each in results])
    np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-6)
    assert not any(each.bad for each in results)
