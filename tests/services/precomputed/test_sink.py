"""`--out precomputed://NAME`: a generation becomes visible only when it is complete."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.job import BatchConfig
from mlctl.services.batch.sinks import open_sink
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.precomputed.store_urls import open_store
from tests.services.precomputed.conftest import NAME, Ask, Bench
from tests.support import tables
from tests.support.bundles import expected, make_bundle
from tests.support.transforms import make_text_bundle

BY_ID = BatchConfig(keep=("id",), unit_rows=100)


@pytest.fixture(autouse=True)
def place(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLCTL_PRECOMPUTED_STORE", str(bench.folder))


def score(bench: Bench, rows: Path, *, name: str = NAME, **options: str) -> int:
    """How many rows a run of the job scored."""
    sink = open_sink(f"precomputed://{name}?key=id", options=options)
    return tables.score(bench.bundle, rows, sink, config=BY_ID).rows


def test_sink__batch_run__is_served_and_a_rerun_does_nothing(bench: Bench, tmp_path: Path) -> None:
    x = tables.write_rows(tmp_path / "in.parquet", 450)
    assert score(bench, tmp_path / "in.parquet") == 450
    assert score(bench, tmp_path / "in.parquet") == 0

    async def use(ask: Ask, _host: ServedModel) -> None:
        answer = await ask([3, 449, 0])
        np.testing.assert_allclose(answer.y, expected(x[[3, 449, 0]]), rtol=1e-6)
        online = await ask(None, x[3:4].tolist())
        assert online.y[0] == answer.y[0]
        assert (await ask("450")).status == "no_precomputed_answer"

    bench.run(use)


def test_sink__several_runs__keep_the_live_and_the_previous_generation(
    bench: Bench, tmp_path: Path
) -> None:
    for night in range(3):
        tables.write_rows(tmp_path / f"{night}.parquet", 100, first=night)
        score(bench, tmp_path / f"{night}.parquet")
    tables.write_rows(tmp_path / "last.parquet", 120)
    score(bench, tmp_path / "last.parquet", flip="no")
    found = [(g.rows, g.live, g.previous) for g in bench.store().generations()]
    assert found == [(100, False, True), (100, True, False), (120, False, False)]
    # One that never became live makes room for the next job of the same model.
    tables.write_rows(tmp_path / "new.parquet", 130)
    score(bench, tmp_path / "new.parquet")
    assert [g.rows for g in bench.store().generations()] == [100, 130]


def test_sink__four_digests__keeps_three(bench: Bench, tmp_path: Path) -> None:
    tables.write_rows(tmp_path / "in.parquet", 10)
    digests = []
    for scale in (2.0, 3.0, 4.0, 5.0):
        bundle = make_bundle(tmp_path / f"b{scale}", scale=scale)
        sink = open_sink(f"precomputed://{NAME}")
        tables.score(bundle, tmp_path / "in.parquet", sink, config=BY_ID)
        digests.append(bundle.digest)
    assert [g.digest for g in bench.store().generations() if g.live] == digests[1:]


def test_sink__bad_rows__are_left_to_the_model(bench: Bench, tmp_path: Path) -> None:
    bundle = make_text_bundle(tmp_path / "bundle")
    texts = ["one two", "", "one two"]
    parquet.write_table(pa.table({"id": ["a", "b", "c"], "text": texts}), tmp_path / "in.parquet")
    sink = open_sink(f"precomputed://{NAME}")
    tables.score(bundle, tmp_path / "in.parquet", sink, config=BY_ID, limit="1")
    assert [g.rows for g in bench.store().generations()] == [2]


def test_sink__unusable_key_or_option__is_rejected_before_scoring(
    bench: Bench, tmp_path: Path
) -> None:
    tables.write_rows(tmp_path / "in.parquet", 10)
    for options, keep in (({}, ()), ({"key": "other"}, ("id",)), ({"key": "x"}, ("id", "x"))):
        sink = open_sink(f"precomputed://{NAME}", options=options)
        with pytest.raises(MlctlError) as caught:
            tables.score(bench.bundle, tmp_path / "in.parquet", sink, config=BatchConfig(keep=keep))
        assert caught.value.code is ErrorCode.INVALID_INPUT
    for location, option in (
        ("precomputed://../x", {}),
        (f"precomputed://{NAME}", {"flip": "maybe"}),
    ):
        with pytest.raises(MlctlError):
            open_sink(location, options=option)


def test_sink__store_is_lost__job_starts_again(bench: Bench, tmp_path: Path) -> None:
    tables.write_rows(tmp_path / "in.parquet", 100)
    score(bench, tmp_path / "in.parquet")
    for path in bench.folder.glob(f"{NAME}.db*"):
        path.unlink()
    assert score(bench, tmp_path / "in.parquet") == 100
    assert [g.rows for g in open_store(NAME, str(bench.folder)).generations()] == [100]
