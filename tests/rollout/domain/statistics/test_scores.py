from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from mlctl.rollout.domain.spec import Revision
from mlctl.rollout.domain.statistics.scores import ProvedScore, clearly_worse
from mlctl.rollout.journal import records

ACCURACY = ProvedScore("digits", "accuracy", 0.89, higher_is_better=True, rows=1000, data="d")
RMSE = ProvedScore("price", "rmse", 12.0, higher_is_better=False, rows=1000, data="d")


@pytest.mark.parametrize(
    ("live", "value", "worse"),
    [
        (ACCURACY, 0.30, True),
        (ACCURACY, 0.85, True),
        (ACCURACY, 0.88, False),
        (ACCURACY, 0.99, False),
        (RMSE, 14.0, True),
        (RMSE, 12.5, False),
        (RMSE, 3.0, False),
    ],
)
def test_clearly_worse__value_of_each_metric__follows_direction_and_noise(
    live: ProvedScore, value: float, worse: bool
) -> None:
    found = clearly_worse([live], [replace(live, value=value)])
    assert bool(found) is worse
    assert all(f"{value:.4g}" in text and f"{live.value:.4g}" in text for text in found)


def test_clearly_worse__few_rows__a_loss_within_the_noise_passes() -> None:
    live = replace(ACCURACY, rows=20)
    assert not replace(live, value=0.75).clearly_worse(live)


@pytest.mark.parametrize("field", ["model", "metric", "data", "code"])
def test_clearly_worse__another_metric_or_other_data__not_compared(field: str) -> None:
    document = {**asdict(ACCURACY), "value": 0.1, field: "other"}
    other = ProvedScore(**document)
    assert clearly_worse([ACCURACY], [other]) == ()


def test_revision__scores__come_back_from_json() -> None:
    revision = Revision("shop:1", "0" * 64, "m", "1", "s", scores=(ACCURACY,))
    assert records.value_from(Revision, json.loads(records.dumps(revision))) == revision
