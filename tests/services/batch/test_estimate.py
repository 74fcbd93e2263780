"""Time and cost of a job, from a sample of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bundle.errors import ErrorCode, MlctlError
from bundle.verify import VerifiedBundle
from services.batch.base import SourceRequest
from services.batch.estimate import CostEstimate, _chunks, estimate
from services.batch.job import BatchConfig
from services.batch.sources import open_source
from tests.support.bundles import make_bundle
from tests.support.tables import write_rows


def estimated(bundle: VerifiedBundle, place: Path, cpu_hour: float | None = 0.04) -> CostEstimate:
    wanted = BatchConfig(keep=("id",), unit_rows=500)
    source = open_source(SourceRequest(str(place), wanted.unit_rows))
    return estimate(bundle, source, wanted, cpu_hour, 0.2, threads=2)


def test_estimate__sample_of_a_table__figures_belong_together(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    write_rows(tmp_path / "rows.parquet", 20_000)
    found = estimated(bundle, tmp_path / "rows.parquet")
    assert found.spread
    assert 4 <= found.units <= 40
    assert found.rows == 500 * found.units
    assert found.total_rows == 20_000
    seconds = 20_000 / found.rows_per_second
    assert found.job_seconds == pytest.approx(seconds)
    # Two cores at 0.04 an hour.
    assert found.job_cost == pytest.approx(seconds / 3600 * 0.08)
    assert found.million_cost == pytest.approx(50 * seconds / 3600 * 0.08)
    assert estimated(bundle, tmp_path / "rows.parquet", None).job_cost is None


def test_estimate__first_units_of_a_table__come_from_all_over_it(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", 20_000)
    source = open_source(SourceRequest(str(tmp_path / "rows.parquet"), 200))
    starts = [chunk.unit.start for chunk in _chunks(source, ["id"])]
    assert sorted(starts) == list(range(0, 20_000, 200))
    assert {start // 5_000 for start in starts[:20]} == {0, 1, 2, 3}


def test_estimate__source_without_units__is_sampled_from_its_beginning(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    lines = [f"{index},1,2,3,{'x' if index == 7 else 4}" for index in range(4000)]
    (tmp_path / "rows.csv").write_text("\n".join(["id,x_0,x_1,x_2,x_3", *lines]) + "\n")
    found = estimated(bundle, tmp_path / "rows.csv")
    assert not found.spread
    assert (found.total_rows, found.job_seconds, found.job_cost) == (None, None, None)
    assert found.million_cost is not None
    assert found.bad == 1


def test_estimate__input_without_rows__is_refused(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    write_rows(tmp_path / "rows.parquet", 0)
    with pytest.raises(MlctlError, match="has no rows") as caught:
        estimated(bundle, tmp_path / "rows.parquet")
    assert caught.value.code is ErrorCode.INVALID_INPUT
