"""What a job would take, from a sample of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bundle.errors import ErrorCode, MlctlError
from bundle.verify import VerifiedBundle
from services.batch.base import SourceRequest
from services.batch.estimate import (
    Estimate,
    Prices,
    Sample,
    estimate,
    online_cost,
    predict,
    spread_order,
    student,
)
from services.batch.job import Wanted
from services.batch.sources import open_source
from tests.support.bundles import make_bundle
from tests.support.tables import write_rows

PRICES = Prices(cpu_hour=0.04, online_hour=0.36, online_rps=1000.0)


@pytest.mark.parametrize("count", [1, 2, 5, 8, 100])
def test_each_beginning_of_the_order_is_spread_over_all(count: int) -> None:
    assert sorted(spread_order(count)) == list(range(count))
    quarters = {4 * index // 100 for index in list(spread_order(100))[:5]}
    assert quarters == {0, 1, 2, 3}


def test_equal_samples_leave_no_doubt_and_unequal_ones_do() -> None:
    sure = predict([Sample(1000, 0.5)] * 5)
    assert (sure.low, sure.middle, sure.high) == pytest.approx((500, 500, 500))
    # Seconds in proportion to the rows are equal, too.
    assert predict([Sample(1000, 0.5), Sample(10, 0.005)]).high == pytest.approx(500)
    wide = predict([Sample(100, 1.0), Sample(100, 2.0), Sample(100, 3.0), Sample(100, 2.0)])
    assert wide.middle == pytest.approx(20_000)
    # Student's 3.18 times a standard error of 0.408 s for 100 rows.
    assert wide.high == pytest.approx(20_000 + 12_990, rel=0.01)
    assert wide.low == pytest.approx(20_000 - 12_990, rel=0.02)


def test_one_sample_gives_no_interval() -> None:
    found = predict([Sample(10, 1.0)])
    assert (found.low, found.middle, found.high) == (None, 100_000, None)
    assert found.times(2).high is None


@pytest.mark.parametrize(("freedom", "table"), [(3, 3.182), (7, 2.365), (30, 2.042)])
def test_students_quantile(freedom: int, table: float) -> None:
    assert student(freedom) == pytest.approx(table, rel=0.01)
    assert student(1) > 12.7
    assert student(2) > 4.3


def test_an_online_server_costs_by_the_hour() -> None:
    assert online_cost(PRICES) == pytest.approx(0.1)
    assert online_cost(Prices(online_hour=1.0)) is None


def estimated(bundle: VerifiedBundle, place: Path, prices: Prices = PRICES) -> Estimate:
    wanted = Wanted(keep=("id",), unit_rows=500)
    source = open_source(SourceRequest(str(place), wanted.unit_rows))
    return estimate(bundle, source, wanted, prices, 0.2, threads=2)


def test_a_job_is_measured_and_its_figures_belong_together(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    write_rows(tmp_path / "rows.parquet", 20_000)
    found = estimated(bundle, tmp_path / "rows.parquet")
    assert found.spread
    assert 4 <= found.units <= 40
    assert found.rows == 500 * found.units
    assert found.total_rows == 20_000
    assert found.seconds.low is not None
    assert found.seconds.low < found.seconds.middle
    assert found.job_seconds == found.seconds.times(0.02)
    assert found.batch_cost is not None
    assert found.batch_cost.middle == pytest.approx(found.seconds.middle / 3600 * 0.04 * 2)
    assert found.job_cost is not None
    assert found.job_cost.middle == pytest.approx(found.batch_cost.middle / 50)
    assert set(found.stages) == {"reading", "scoring", "writing"}
    slowest = max(stage.middle for stage in found.stages.values())
    assert found.seconds.middle > 0.5 * slowest
    assert found.cpu_seconds > 0


def test_a_source_that_is_read_from_its_beginning_only_says_so(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    lines = [f"{index},1,2,3,{'x' if index == 7 else 4}" for index in range(4000)]
    (tmp_path / "rows.csv").write_text("\n".join(["id,x_0,x_1,x_2,x_3", *lines]) + "\n")
    found = estimated(bundle, tmp_path / "rows.csv", Prices())
    assert not found.spread
    assert found.total_rows is None
    assert found.job_seconds is None
    assert found.batch_cost is None
    assert found.bad == 1 or found.rows < 4000


def test_an_input_without_rows_is_refused(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    write_rows(tmp_path / "rows.parquet", 0)
    with pytest.raises(MlctlError, match="has no rows") as caught:
        estimated(bundle, tmp_path / "rows.parquet")
    assert caught.value.code is ErrorCode.INVALID_INPUT
