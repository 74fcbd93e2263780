"""Time and cost of a job, from a sample of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.estimate import CostEstimate, estimate
from mlctl.services.batch.job import BatchConfig
from mlctl.services.batch.sources import open_source
from tests.support.bundles import make_bundle
from tests.support.tables import write_rows


def estimated(bundle: VerifiedBundle, rows: Path, price: float | None = 0.04) -> CostEstimate:
    config = BatchConfig(keep=("id",), unit_rows=500)
    return estimate(bundle, open_source(str(rows), 500), config, price, 0.2, threads=2)


def test_estimate__sample_of_a_table__figures_are_sums(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    write_rows(tmp_path / "rows.parquet", 20_000, group=500)
    found = estimated(bundle, tmp_path / "rows.parquet")
    assert 4 <= found.units <= 40
    assert found.rows == 500 * found.units
    assert found.total_rows == 20_000
    assert found.job_hours == pytest.approx(found.million_seconds / 50 / 3600)
    # Two threads.
    assert found.job_seconds == pytest.approx(found.million_seconds / 50 / 2)
    assert found.job_hours is not None
    assert found.job_cost == pytest.approx(found.job_hours * 0.04)
    assert found.million_cost == pytest.approx(found.million_seconds / 3600 * 0.04)
    assert found.spread > 0
    assert (found.resource, found.parallel) == ("core", 2)
    assert estimated(bundle, tmp_path / "rows.parquet", None).job_cost is None


def test_estimate__csv__has_no_sum_for_all_rows(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    lines = [f"{index},1,2,3,{'x' if index == 7 else 4}" for index in range(4000)]
    (tmp_path / "rows.csv").write_text("\n".join(["id,x_0,x_1,x_2,x_3", *lines]) + "\n")
    found = estimated(bundle, tmp_path / "rows.csv")
    assert (found.total_rows, found.job_seconds, found.job_cost) == (None, None, None)
    assert found.million_cost is not None
    assert found.bad == 1


def test_estimate__input_without_rows__is_rejected(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    write_rows(tmp_path / "rows.parquet", 0)
    with pytest.raises(MlctlError, match="has no rows") as caught:
        estimated(bundle, tmp_path / "rows.parquet")
    assert caught.value.code is ErrorCode.INVALID_INPUT
