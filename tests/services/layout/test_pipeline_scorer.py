"""A pipeline in batches and streams: the answers of its stages, one after the other."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.job import BatchConfig, BatchReport, Executor, run_job
from mlctl.services.batch.local_executor import local_executor
from mlctl.services.batch.progress import ErrorLimit, RunControl
from mlctl.services.batch.sinks import open_sink
from mlctl.services.batch.sources import open_source
from mlctl.services.batch.units import Sink
from mlctl.services.layout.bento_layout import BentoContents, combine_bundles
from mlctl.services.layout.pipeline_scorer import PipelineScorer, VerifiedPipeline
from mlctl.services.layout.scorable import find_scorable, open_scorable, unit_rows
from mlctl.services.model.run_errors import ModelRunError, is_out_of_memory
from mlctl.services.stream.base import ConnectionRequest, StreamUrl
from mlctl.services.stream.engine import RunSettings
from mlctl.services.stream.payloads import PayloadRequest
from mlctl.services.stream.start import StreamConfig as StreamWanted
from mlctl.services.stream.start import default_dead, run_stream
from tests.services.layout.test_bento_layout import lay_out
from tests.support import tables
from tests.support.bundles import expected, make_bundle


def pipeline(folder: Path, *, row_independent: bool = True) -> BentoContents:
    first = make_bundle(folder / "double", name="double", row_independent=row_independent)
    second = make_bundle(folder / "triple", name="triple", scale=3.0)
    return combine_bundles([first, second], "both", ["triple.x=double.y"])


@pytest.fixture(scope="module")
def bento(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    lay_out(pipeline(folder / "made"), folder / "bento" / "src")
    return folder / "bento"


@pytest.fixture
def whole(bento: Path) -> VerifiedPipeline:
    found = find_scorable(str(bento))
    assert isinstance(found, VerifiedPipeline)
    return found


def wanted(x: np.ndarray) -> np.ndarray:
    return expected(expected(x), scale=3.0)


def opened(whole: VerifiedPipeline, batch_rows: int | None = None) -> PipelineScorer:
    scorer = open_scorable(whole, batch_rows)
    assert isinstance(scorer, PipelineScorer)
    return scorer


def test_find_scorable__pipeline__is_found_as_a_whole(bento: Path, whole: VerifiedPipeline) -> None:
    assert (whole.name, [each.name for each in whole.stages]) == ("both", ["double", "triple"])
    assert [spec.name for spec in (*whole.signature.inputs, *whole.signature.outputs)] == ["x", "y"]
    assert unit_rows(whole) == 20_000
    alone = bento / "src" / "models" / "triple"
    stage = find_scorable(str(alone))
    assert isinstance(stage, VerifiedBundle)
    assert (stage.name, whole.digest != stage.digest) == ("triple", True)


def test_find_scorable__signature_required__checks_each_stage(
    bento: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "key.pub"
    key.touch()
    monkeypatch.setenv("MLCTL_REQUIRE_SIGNATURE", str(key))
    with pytest.raises(MlctlError, match="'double' is not signed") as caught:
        find_scorable(str(bento))
    assert caught.value.code is ErrorCode.SIGNATURE_INVALID


def test_find_scorable__tag__is_the_whole_with_its_label(
    bento: Path, whole: VerifiedPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENTOML_HOME", str(tmp_path))
    place = tmp_path / "bentos" / "both" / "v1"
    shutil.copytree(bento, place)

    def label(digest: str) -> None:
        labels = f'labels:\n  mlctl.digest: "{digest}"\n'
        (place / "bento.yaml").write_text(f"name: both\nversion: v1\n{labels}")

    label(whole.digest)
    assert find_scorable("both:v1").digest == find_scorable("both:v1/both").digest == whole.digest
    assert find_scorable("both:v1/triple").name == "triple"
    label("0" * 64)
    with pytest.raises(MlctlError) as caught:
        find_scorable("both:v1")
    assert caught.value.code is ErrorCode.DIGEST_MISMATCH
    with pytest.raises(MlctlError, match="is not a tag of a Bento"):
        find_scorable(str(tmp_path))


def test_pipeline_scorer__many_rows__runs_parts_of_the_smallest_stage(
    whole: VerifiedPipeline,
) -> None:
    x = tables.inputs(300)
    scorer = opened(whole, 64)
    seen: list[int] = []
    first = scorer._stages[0]
    run = first.run

    def count(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        seen.append(len(inputs["x"]))
        return run(inputs)

    first.run = count  # type: ignore[method-assign]
    assert (scorer.check({"x": x}), scorer.joinable, scorer.thread_safe) == (300, True, True)
    np.testing.assert_allclose(scorer.run({"x": x})["y"], wanted(x), rtol=1e-4, atol=1e-5)
    assert seen == [64, 64, 64, 64, 44]
    with pytest.raises(MlctlError, match="input 'x' is missing"):
        scorer.check({})


def test_pipeline_scorer__dependent_rows__run_together(tmp_path: Path) -> None:
    whole = VerifiedPipeline.of(pipeline(tmp_path, row_independent=False))
    assert whole is not None
    scorer = opened(whole, 2)
    assert not scorer.joinable
    x = tables.inputs(5)
    first = expected(x, row_independent=False)
    answer = scorer.run({"x": x})["y"]
    np.testing.assert_allclose(answer, expected(first, scale=3.0), rtol=1e-4, atol=1e-5)


def test_pipeline_scorer__stage_fails__error_names_it(
    whole: VerifiedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = opened(whole)

    def fail(_: object) -> dict[str, np.ndarray]:
        raise ModelRunError("it failed") from MemoryError("out of memory")

    monkeypatch.setattr(scorer._stages[1], "run", fail)
    with pytest.raises(ModelRunError, match=r"^stage 'triple': it failed") as caught:
        scorer.run({"x": tables.inputs(1)})
    assert is_out_of_memory(caught.value)


def _score(whole: VerifiedPipeline, source: Path, sink: Sink, executor: Executor) -> BatchReport:
    asked = BatchConfig(keep=("id",), unit_rows=500, forbid_nan=True)
    rows = open_source(str(source), asked.unit_rows)
    control = RunControl(limit=ErrorLimit(count=5))
    return run_job(whole, rows, sink, asked, executor, control)


def test_pipeline_scorer__batch_run__scores_each_row_once(
    whole: VerifiedPipeline, tmp_path: Path
) -> None:
    x = tables.inputs(1200)
    x[7, 1] = np.nan
    parquet.write_table(tables.table(x), tmp_path / "in.parquet")
    out = tmp_path / "out"

    def sink() -> Sink:
        return open_sink(str(out))

    report = _score(whole, tmp_path / "in.parquet", sink(), local_executor(2))
    assert (report.totals.rows, report.totals.bad, report.digest) == (1199, 1, whole.digest)
    found = tables.answers(out)
    assert set(found["mlctl_digest"].to_pylist()) == {whole.digest}
    good = np.delete(x, 7, axis=0)
    np.testing.assert_allclose(tables.matrix(found["y"]), wanted(good), rtol=1e-4, atol=1e-4)
    assert [row["id"] for row in tables.quarantine(out)] == [7]


def test_pipeline_scorer__stream_run__answers_each_message(
    whole: VerifiedPipeline, tmp_path: Path
) -> None:
    rows = tables.inputs(20)
    lines = (json.dumps({"x": row.tolist()}) for row in rows)
    (tmp_path / "in.jsonl").write_text("".join(f"{line}\n" for line in lines))
    source = StreamUrl.parse(f"file://{tmp_path}/in.jsonl")
    link = ConnectionRequest(
        source, "g", StreamUrl.parse(f"file://{tmp_path}/out.jsonl"), default_dead(source)
    )
    asked = StreamWanted(link, PayloadRequest(), RunSettings(until_empty=True))
    report = run_stream(whole, asked, lambda _event: None, threading.Event())
    assert report.totals.messages == 20
    told = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    np.testing.assert_allclose([each["y"] for each in told], wanted(rows), rtol=1e-4, atol=1e-4)
