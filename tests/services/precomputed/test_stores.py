"""Generations in every store: SQLite and a real Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.job import BatchConfig
from mlctl.services.batch.sinks import open_sink
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.precomputed.base import JobRecord, PrecomputedRow, PrecomputedStore
from mlctl.services.precomputed.store_urls import list_names, open_store
from tests.services.precomputed.conftest import NAME, Ask, Bench, make_live
from tests.services.precomputed.servers import redis_server
from tests.support import tables
from tests.support.bundles import expected
from tests.support.wait import PATIENCE_SECONDS

pytestmark = pytest.mark.slow

PLACES = ("folder", "redis")


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as database:
        yield database.url


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "answers")
    return str(request.getfixturevalue("redis_url"))


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """One of its own for each test, as the servers are shared."""
    return f"{request.function.__name__[:60]}"


@pytest.fixture
def store(place: str, name: str) -> Iterator[PrecomputedStore]:
    opened = open_store(name, place)
    yield opened
    opened.close()


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_flip__sealed_generation__is_visible_only_then(
    store: PrecomputedStore, name: str, place: str
) -> None:
    reader = store.reader("blue", 5.0)
    assert reader.get(["a"]) == [None]
    first = store.create("blue", 100.0)
    store.commit(first, [PrecomputedRow("a", 1.5, b"\x00\xff"), PrecomputedRow("b", 2.0, b"")])
    store.commit(first, [PrecomputedRow("b", 3.0, b"again"), PrecomputedRow("\u00e9", 4.0, b"x")])
    assert reader.get(["a"]) == [None]
    with pytest.raises(MlctlError) as caught:
        store.flip(first, 110.0)
    assert caught.value.code is ErrorCode.NOT_READY
    store.seal(first)
    store.flip(first, 110.0)
    store.flip(first, 120.0)
    row = PrecomputedRow("b", 3.0, b"again")
    assert reader.get(["b", "none", "a", "b"]) == [
        row,
        None,
        PrecomputedRow("a", 1.5, b"\x00\xff"),
        row,
    ]
    other = store.reader("green", 5.0)
    assert other.get(["a", "\u00e9"]) == [None, None]
    other.close()
    (found,) = store.generations()
    assert (found.number, found.digest, found.made_at, found.rows) == (first, "blue", 100.0, 3)
    assert (found.live, found.previous, found.flipped_at) == (True, False, 120.0)
    assert name in list_names(place)
    reader.close()


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_flip__several_generations__keeps_the_previous_one(store: PrecomputedStore) -> None:
    numbers = [store.create("blue", float(each)) for each in range(4)]
    for number in numbers:
        store.commit(number, [PrecomputedRow("a", float(number), b"")])
        store.seal(number)
    reader = store.reader("blue", 5.0)
    for number in numbers[:3]:
        store.flip(number, 100.0 + number)
        assert reader.get(["a"]) == [PrecomputedRow("a", float(number), b"")]
    states = [(each.number, each.live, each.previous) for each in store.generations()]
    assert states == [
        (numbers[1], False, True),
        (numbers[2], True, False),
        (numbers[3], False, False),
    ]
    store.flip(numbers[1], 200.0)
    assert reader.get(["a"]) == [PrecomputedRow("a", float(numbers[1]), b"")]
    store.drop(numbers[3])
    with pytest.raises(MlctlError, match="does not exist"):
        store.flip(numbers[0], 1.0)
    with pytest.raises(MlctlError, match="was dropped") as caught:
        store.commit(numbers[3], [])
    assert caught.value.code is ErrorCode.JOB_CHANGED
    with pytest.raises(MlctlError, match="was dropped"):
        store.seal(numbers[3])
    reader.close()


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_commit__units__are_recorded_with_the_job(store: PrecomputedStore) -> None:
    number = store.create("blue", 1.0, "the job")
    rows = [PrecomputedRow(str(key), 1.0, b"x") for key in range(8_000)]
    store.commit(number, rows, {"u1": "[8000, 0]"})
    store.commit(number, [], {"u2": "[0, 1]"}, 1)
    # Another run of the job does a unit twice.
    store.commit(number, rows[:100], {"u1": "[8000, 0]"})
    found = store.record(number)
    assert found == JobRecord("the job", {"u1": "[8000, 0]", "u2": "[0, 1]"})
    with pytest.raises(MlctlError, match="has lost committed rows"):
        store.seal(number, 3)
    assert [(each.rows, each.sealed) for each in store.generations()] == [(8_000, False)]
    store.drop(number)
    assert store.record(number) is None


@pytest.mark.parametrize("place", ["redis"], indirect=True)
def test_shared_store__batch_run__is_served_to_others(
    bench: Bench, place: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLCTL_PRECOMPUTED_STORE", place)
    monkeypatch.setenv("MLCTL_HOME", str(tmp_path / "home"))
    x = tables.write_rows(tmp_path / "in.parquet", 300)
    sink = open_sink(f"precomputed://{name}")
    tables.score(bench.bundle, tmp_path / "in.parquet", sink, config=BatchConfig(keep=("id",)))

    async def use(ask: Ask, _host: ServedModel) -> None:
        answer = await ask([7, 299])
        assert answer.parameters["source"] == "precomputed"
        np.testing.assert_allclose(answer.y, expected(x[[7, 299]]), rtol=1e-6)
        mixed = await ask([7, "new"], x[:2].tolist())
        assert mixed.parameters["precomputed_rows"] == 1
        assert (
            await ask("new")
        ).status == "no_precomputed_answer"  # known to be absent for a moment

    bench.run(use, precomputed=name, precomputed_store=place, precomputed_timeout_ms=20_000)
    assert (bench.counted("hit"), bench.counted("miss")) == (3, 2)


X = [[1.0, 2.0, 3.0, 4.0]]


def fill(bench: Bench, place: str) -> None:
    store = open_store(NAME, place)
    row = PrecomputedRow("a", time.time(), np.full(4, 7, "<f4").tobytes())
    make_live(store, bench.bundle.digest, row)
    store.close()


async def until_found(ask: Ask) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (await ask("a", X)).y != [[7] * 4]:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def test_redis__dies_and_returns__only_stored_answers_are_missing(
    bench: Bench, tmp_path: Path
) -> None:
    async def use(ask: Ask, _host: ServedModel) -> None:
        assert (await ask("a", X)).y == [[7] * 4]
        database.kill()
        for _ in range(3):
            assert (await ask("a", X)).y == [[12, 14, 16, 18]]
        assert bench.counted("down") == 3
        with redis_server(tmp_path, database.port):
            fill(bench, database.url)
            await until_found(ask)

    with redis_server(tmp_path) as database:
        fill(bench, database.url)
        bench.run(use, precomputed_store=database.url, precomputed_timeout_ms=20_000)


def test_get__concurrent_flips__rows_are_of_one_generation(tmp_path: Path) -> None:
    keys, place = [str(key) for key in range(20)], str(tmp_path)
    writer, reader = open_store(NAME, place), open_store(NAME, place).reader("blue", 5.0)
    make_live(writer, "blue", *(PrecomputedRow(key, -1.0, b"") for key in keys))

    seen: set[float | None] = set()

    def flip_until_seen() -> float:
        turn = 0.0
        while turn < 40 or len(seen) <= 2:
            turn += 1
            number = writer.create("blue", turn)
            writer.commit(number, [PrecomputedRow(key, turn, b"") for key in keys])
            writer.seal(number)
            writer.flip(number, turn)
        writer.close()
        return turn

    with ThreadPoolExecutor(1) as threads:
        flips = threads.submit(flip_until_seen)
        while not flips.done():
            found = {None if row is None else row.at for row in reader.get(keys)}
            seen |= found
            assert len(found) == 1
    assert {row.at for row in reader.get(keys) if row is not None} == {flips.result()}
    reader.close()
