"""Predictions kept until their labels come."""

from __future__ import annotations

import math
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mlctl.bundle.output_kinds import OutputKind
from mlctl.rollout.domain.shadow.join import Recorded
from mlctl.rollout.domain.shadow.labels import RIGHT, WRONG, Deviation
from mlctl.rollout.domain.spec import RolloutSpec
from mlctl.rollout.journal.predictions import PredictionStore

LIVE, CANDIDATE = "a" * 64, "b" * 64
SPEC = RolloutSpec(burst_seconds=5.0, min_accuracy=0.9)


def row(
    request_id: str, number: int = 0, digest: str = LIVE, at: float = 100.0, answer: object = None
) -> Recorded:
    scores = np.asarray([0.1, 0.9], np.float32) if answer is None else np.asarray(answer)
    return Recorded((request_id, number), digest, at, {"probs": scores}, Path("segment"), 0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PredictionStore]:
    with PredictionStore(tmp_path / "predictions.db", keep_seconds=1000.0) as opened:
        yield opened


def label_all(store: PredictionStore, ids: list[str], deviation: Deviation) -> None:
    store.label([(each, deviation) for rows in store.find(ids).values() for each in rows])


def test_store__its_files__are_private_to_the_owner(store: PredictionStore, tmp_path: Path) -> None:
    store.add([row("r")], 100.0)
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


@pytest.mark.parametrize(
    "answer",
    [
        np.asarray([1.5, 2.5], np.float16),
        np.asarray([[1.0, 2.0]]),
        np.asarray(7, np.int64),
        np.asarray(b"k\xc3\xa4se", dtype=object),
        np.asarray([b"a", b"b"], dtype=object),
    ],
)
def test_store__answer_of_any_type__comes_back(store: PredictionStore, answer: np.ndarray) -> None:
    store.add([row("r", answer=answer)], 100.0)
    (found,) = store.find(["r", "other"])["r"]
    assert found.answer.shape == answer.shape
    expected = [each.decode() if isinstance(each, bytes) else each for each in answer.ravel()]
    assert found.answer.ravel().tolist() == expected


def test_store__same_row_recorded_again__keeps_its_label(store: PredictionStore) -> None:
    store.add([row("r")], 100.0)
    label_all(store, ["r"], WRONG)
    store.add([row("r")], 101.0)
    assert store.blocks([LIVE], SPEC) == [(1.0, 1)]


def test_store__two_requests_of_one_id__cannot_be_labelled(store: PredictionStore) -> None:
    store.add([row("r"), row("r", at=101.0), row("s")], 101.0)
    assert list(store.find(["r", "s"])) == ["s"]


def test_store__many_ids__are_found_in_several_queries(store: PredictionStore) -> None:
    store.add([row(f"r{number}") for number in range(1200)], 100.0)
    assert len(store.find([f"r{number}" for number in range(2000)])) == 1200


def test_blocks__labels_in_any_order__are_laid_out_by_the_time_of_the_answer(
    store: PredictionStore,
) -> None:
    store.add([row("c", at=111.0), row("a", at=100.0), row("b", at=101.0)], 120.0)
    label_all(store, ["c"], WRONG)
    label_all(store, ["a", "b"], RIGHT)
    assert store.blocks([LIVE], SPEC) == [(0.0, 2), (1.0, 1)]
    assert store.blocks([CANDIDATE], SPEC) == []


def test_blocks__rows_of_one_request__are_one_trial(store: PredictionStore) -> None:
    store.add([row("r", number) for number in range(4)], 100.0)
    rows = store.find(["r"])["r"]
    store.label([(rows[0], WRONG), *((each, RIGHT) for each in rows[1:])])
    assert store.blocks([LIVE], SPEC) == [(0.25, 1)]


@pytest.mark.parametrize(
    ("max_error", "wrong"), [(None, 2.0), (0.25, 1.0), (2.0, 0.0), (100.0, 0.0)]
)
def test_blocks__numbers__are_wrong_beyond_the_distance(
    store: PredictionStore, max_error: float | None, wrong: float
) -> None:
    store.add([row("near", answer=10.2), row("far", answer=11.0), row("exact")], 100.0)
    label_all(store, ["near"], Deviation(0.2, 10.0))
    label_all(store, ["far"], Deviation(1.0, 10.0))
    label_all(store, ["exact"], Deviation(0.0, 10.0))
    assert store.blocks([LIVE], replace(SPEC, max_label_error=max_error)) == [(wrong, 3)]


def test_blocks__wrong_class__is_wrong_at_any_distance(store: PredictionStore) -> None:
    store.add([row("r")], 100.0)
    label_all(store, ["r"], WRONG)
    assert store.blocks([LIVE], replace(SPEC, max_label_error=1e9)) == [(1.0, 1)]


def test_accuracies__both_revisions__have_their_own(store: PredictionStore) -> None:
    store.add([row("r", answer=1.0), row("r", digest=CANDIDATE, answer=5.0)], 100.0)
    live, candidate = store.find(["r"])["r"]
    store.label([(live, Deviation(0.0, 1.0)), (candidate, Deviation(4.0, 1.0))])
    found = {each.digest: each for each in store.accuracies(SPEC)}
    assert (found[LIVE].wrong, found[LIVE].requests) == (0.0, 1)
    assert (found[CANDIDATE].wrong, found[CANDIDATE].mean_error) == (1.0, 4.0)


def test_kind__several_outputs__is_that_of_the_first(store: PredictionStore) -> None:
    assert store.kind(LIVE) is None
    store.add([row("r"), row("t", digest=CANDIDATE, answer=np.asarray(b"x", dtype=object))], 100.0)
    assert store.kind(LIVE) is OutputKind.CLASS_SCORES
    assert store.kind(CANDIDATE) is OutputKind.LABELS


def test_prune__old_rows__are_deleted(store: PredictionStore) -> None:
    store.add([row("old", at=100.0), row("new", at=900.0)], 900.0)
    store.add([row("newer", at=1200.0)], 1200.0)
    assert sorted(store.find(["old", "new", "newer"])) == ["new", "newer"]


def test_prune__store_beyond_its_size__loses_the_oldest(store: PredictionStore) -> None:
    answers = np.zeros(200, np.float64)
    ids = [f"r{number}" for number in range(1000)]
    store.add([row(each, at=100.0 + n, answer=answers) for n, each in enumerate(ids)], 1000.0)
    store.prune(1000.0, max_bytes=1 << 20)
    kept = store.find(ids)
    assert 300 < len(kept) < 1000
    assert sorted(kept, key=ids.index) == ids[-len(kept) :]
    store.prune(1000.0, max_bytes=1)
    assert store.find(ids) == {}


def test_version__another_connection_writes__changes(
    store: PredictionStore, tmp_path: Path
) -> None:
    store.add([row("r")], 100.0)
    before = store.version()
    store.add([row("s")], 100.0)
    assert store.version() == before
    with PredictionStore(tmp_path / "predictions.db", math.inf) as client:
        label_all(client, ["r"], WRONG)
    assert store.version() != before
