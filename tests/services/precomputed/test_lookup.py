"""Requests with entity keys, over every door: what is stored, what the model adds, what is said."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import numpy as np
import orjson
import pytest
from prometheus_client import CollectorRegistry

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings
from mlctl.services.precomputed.base import PrecomputedRow
from tests.services.precomputed.conftest import (
    DOORS,
    INFER,
    NAME,
    Ask,
    Bench,
    make_live,
    served,
)
from tests.support.bundles import make_bundle

X = [1.0, 2.0, 3.0, 4.0]
BY_MODEL = [12.0, 14.0, 16.0, 18.0]


@pytest.mark.parametrize("door", DOORS)
def test_lookup__some_keys_are_stored__only_the_rest_is_computed(bench: Bench, door: str) -> None:
    bench.fill({"a": 7, "b": 8, "5": 9}, time.time() - 60)

    async def use(ask: Ask, host: ServedModel) -> None:
        one = await ask("a")
        assert one.y == [[7] * 4]
        assert one.parameters["source"] == "precomputed"
        assert 60 <= one.parameters["age_s"] < 300
        several = await ask(["b", "a", "b"])
        assert several.y == [[8] * 4, [7] * 4, [8] * 4]
        online = await ask("new", [X])
        assert (online.y, online.parameters["source"]) == ([BY_MODEL], "online")
        mixed = await ask(["new", "b", "newer", "5"], [X, [0] * 4, X, [0] * 4])
        assert mixed.y == [BY_MODEL, [8] * 4, BY_MODEL, [9] * 4]
        assert (mixed.parameters["source"], mixed.parameters["precomputed_rows"]) == ("mixed", 2)
        assert host.tally is not None
        assert sum(host.tally.batches) == 3  # of one row and of two, never of four
        assert (await ask("new")).status in {"no_precomputed_answer", "not_found"}
        assert (await ask(["a", "new"])).status in {"no_precomputed_answer", "not_found"}
        plain = await ask(None, [X])
        assert (plain.y, plain.parameters) == ([BY_MODEL], {})

    bench.run(use, door)
    assert (bench.counted("hit"), bench.counted("miss")) == (7, 5)


@pytest.mark.parametrize("door", DOORS)
def test_lookup__invalid_keys__are_rejected(bench: Bench, door: str) -> None:
    bench.fill({"a": 7}, time.time())

    async def use(ask: Ask, _host: ServedModel) -> None:
        for keys, x in (
            ("", None), ([], None), (["a", 1.5], None), (["a"] * 4097, None), ([True], None),
            ("k" * 513, None), ("a\0", None), (["a", "b"], [X]),
        ):  # fmt: skip
            assert (await ask(keys, x)).status in {"invalid_input", "invalid_argument"}, keys
        assert (await ask([5, "a"], [X, X])).status == "ok"

    bench.run(use, door)


def test_lookup__not_enabled__keys_are_ignored(bench: Bench) -> None:
    async def use(ask: Ask, _host: ServedModel) -> None:
        answer = await ask("a", [X])
        assert (answer.y, answer.parameters) == ([BY_MODEL], {})
        assert (await ask("a")).status == "invalid_input"

    bench.run(use, precomputed=None)


def test_lookup__answer_is_too_old__model_answers(bench: Bench) -> None:
    bench.fill({"old": 7}, time.time() - 100)

    async def use(ask: Ask, _host: ServedModel) -> None:
        assert (await ask("old")).status == "no_precomputed_answer"
        again = await ask("old", [X])
        assert (again.y, again.parameters["source"]) == ([BY_MODEL], "online")

    bench.run(use, precomputed_ttl_s=50)
    assert (bench.counted("stale"), bench.counted("hit")) == (2, 0)


def test_lookup__generation_is_flipped__is_used_at_once(bench: Bench, tmp_path: Any) -> None:
    green = make_bundle(tmp_path / "green", scale=3.0)
    bench.fill({"a": 1}, time.time())

    async def blue_uses(ask: Ask, _host: ServedModel) -> None:
        assert (await ask("a")).y == [[1] * 4]
        bench.fill({"a": 2}, time.time(), green.digest)  # the candidate's, before it is live
        assert (await ask("a")).y == [[1] * 4]
        first = bench.fill({"a": 3}, time.time())
        assert (await ask("a")).y == [[3] * 4]
        store = bench.store()
        previous = next(each for each in store.generations() if each.previous)
        assert previous.number < first
        store.flip(previous.number, time.time())
        store.close()
        assert (await ask("a")).y == [[1] * 4]

    async def green_uses(ask: Ask, _host: ServedModel) -> None:
        assert (await ask("a")).y == [[2] * 4]

    async def other_uses(ask: Ask, _host: ServedModel) -> None:
        assert (await ask("a")).status == "no_precomputed_answer"

    bench.run(blue_uses)
    bench.run(green_uses, bundle=green)
    bench.run(other_uses, bundle=make_bundle(tmp_path / "other", scale=4.0))


def test_lookup__broken_store__model_answers_and_it_is_logged_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.folder.mkdir()
    path = bench.folder / f"{NAME}.db"
    path.write_bytes(b"this is no database, but it is long enough to look like one" * 100)

    async def use(ask: Ask, _host: ServedModel) -> None:
        for _ in range(3):
            assert (await ask("a", [X])).y == [BY_MODEL]
        assert (await ask("a")).status == "unavailable"
        path.unlink()
        bench.fill({"a": 7}, time.time())
        deadline = time.monotonic() + 30
        while (await ask("a", [X])).parameters["source"] == "online":
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)

    with caplog.at_level(logging.INFO, "mlctl.precomputed"):
        bench.run(use)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert bench.counted("down") >= 4


def test_lookup__stored_answer_of_another_shape__is_not_served(
    bench: Bench, tiny: VerifiedBundle
) -> None:
    store = bench.store()
    make_live(store, tiny.digest, PrecomputedRow("a", time.time(), bytes(20)))
    store.close()

    async def use(ask: Ask, _host: ServedModel) -> None:
        assert (await ask("a")).status == "no_precomputed_answer"
        assert (await ask("a", [X])).y == [BY_MODEL]

    bench.run(use)
    assert bench.counted("foreign") == 2


async def test_lookup__binary_tensors__are_read_and_returned(bench: Bench) -> None:
    bench.fill({"a": 7}, time.time())
    head: dict[str, Any] = {"parameters": {"entity_key": ["a", "b"], "binary_data_output": True}}
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 4]}
    head["inputs"] = [{**tensor, "parameters": {"binary_data_size": 32}}]
    text = orjson.dumps(head)
    body = text + np.array([X, X], "<f4").tobytes()
    headers = {"Inference-Header-Content-Length": str(len(text))}

    settings = ServerSettings(precomputed=NAME, precomputed_store=str(bench.folder))
    host = ServedModel(bench.bundle, settings, registry=CollectorRegistry())
    await host.start()
    async with served(host) as client:
        for _ in range(3):  # what comes again is known, and still asked for by its keys
            reply = await client.post(INFER, content=body, headers=headers)
            size = int(reply.headers["inference-header-content-length"])
            assert orjson.loads(reply.content[:size])["parameters"]["source"] == "mixed"
            y = np.frombuffer(reply.content[size:], "<f4").reshape(2, 4)
            assert y.tolist() == [[7] * 4, BY_MODEL]
    await host.stop()


def test_lookup__dependent_rows__is_rejected(bench: Bench, tmp_path: Any) -> None:
    async def never(_ask: Ask, _host: ServedModel) -> None:
        raise AssertionError

    with pytest.raises(MlctlError) as caught:
        bench.run(never, bundle=make_bundle(tmp_path / "mixing", row_independent=False))
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL
