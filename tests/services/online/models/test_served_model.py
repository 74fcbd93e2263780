import asyncio
import threading
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from mlctl.bundle.manifest import Batching, InputConstraints
from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.bundle.verify import VerifiedBundle, seal
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.model.golden import load_golden, save_golden
from mlctl.services.model.scorer import Scorer
from mlctl.services.online.batching.scheduler import Limits, Priority
from mlctl.services.online.batching.streaming import Answer
from mlctl.services.online.models.served_model import ModelPhase, ServedModel
from mlctl.services.online.models.statistics import model_config
from mlctl.services.online.settings import ServerSettings
from tests.support.bundles import expected, make_bundle, make_lookup_bundle
from tests.support.clock import ManualClock
from tests.support.transforms import make_text_bundle

ROW = np.array([[1, 2, 3, 4]], dtype=np.float32)


def host_of(bundle: VerifiedBundle, **settings: float | None) -> ServedModel:
    return ServedModel(
        bundle, ServerSettings.model_validate(settings), registry=CollectorRegistry()
    )


async def test_infer__before_start_or_after_stop__is_unavailable(bundle: VerifiedBundle) -> None:
    host = host_of(bundle)
    with pytest.raises(MlctlError, match="starting"):
        host.infer({"x": ROW})
    await host.start()
    answer = await host.infer({"x": ROW})
    np.testing.assert_allclose(answer.outputs["y"], expected(ROW))
    last = host.infer({"x": ROW})
    await host.stop()
    assert (await last).batch_rows == 1
    with pytest.raises(MlctlError, match="stopping") as caught:
        host.infer({"x": ROW})
    assert caught.value.code is ErrorCode.UNAVAILABLE


def test_start__wrong_golden_answers__fails(tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "b")
    inputs, outputs = load_golden(made.path("golden.npz"))
    save_golden(made.root / "golden.npz", inputs, {"y": outputs["y"] + 1})
    host = host_of(seal(made.root, made.manifest))
    with pytest.raises(MlctlError) as caught:
        asyncio.run(host.start())
    assert caught.value.code is ErrorCode.PARITY_FAILED
    assert host.phase is ModelPhase.NEW
    assert not host.ready


async def test_infer__dependent_rows__are_not_joined(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "b", row_independent=False)

    host = host_of(bundle)
    await host.start()
    answers = await asyncio.gather(*(host.infer({"x": ROW * i}) for i in range(5)))
    await host.stop()
    for i, answer in enumerate(answers):
        want = expected(ROW * i, row_independent=False)
        np.testing.assert_allclose(answer.outputs["y"], want)
        assert answer.batch_rows == 1


async def test_infer__timeout_of_zero__exceeds_the_deadline(bundle: VerifiedBundle) -> None:
    host = host_of(bundle)
    await host.start()
    with pytest.raises(MlctlError) as caught:
        host.infer({"x": ROW}, timeout=0)
    assert caught.value.code is ErrorCode.DEADLINE_EXCEEDED
    await host.stop()


def test_find__other_name_or_version__is_not_found(bundle: VerifiedBundle) -> None:
    host = host_of(bundle)
    assert host.find("tiny") is host.find("tiny", bundle.digest) is host
    for name, version in (("other", ""), ("tiny", "1")):
        with pytest.raises(MlctlError) as caught:
            host.find(name, version)
        assert caught.value.code is ErrorCode.MODEL_NOT_FOUND


def with_batching(bundle: VerifiedBundle, **changes: Any) -> VerifiedBundle:
    """The bundle again, with `changes` to what its manifest says about batching."""
    batching = Batching.model_validate({**bundle.manifest.batching.model_dump(), **changes})
    return seal(bundle.root, bundle.manifest.model_copy(update={"batching": batching}))


def test_limits__bundle_and_environment__environment_wins(
    tmp_path: Path,
) -> None:
    said = {"max_wait_ms": 3.0, "max_queue_rows": 9, "max_queue_ms": 50.0}
    plain = make_bundle(tmp_path / "plain")
    told = with_batching(make_bundle(tmp_path / "told"), **said)

    def limits(bundle: VerifiedBundle, **settings: float) -> Limits:
        host = host_of(bundle, **settings)
        return host._limits(Scorer.open(bundle, host.settings), inline=False)

    assert limits(plain) == Limits(32, 4096, inf)
    assert limits(told) == Limits(32, 9, 0.003, max_queue=0.05)
    ours = limits(told, max_wait_ms=0, max_queue_ms=0)
    assert ours == Limits(32, 9, 0.0, max_queue=0.0)
    assert limits(told, max_queue_rows=7).max_queue_rows == 7


@pytest.mark.parametrize(
    ("seconds", "max_rows", "rows"),
    [
        ({1: 0.01, 8: 0.02, 32: 0.1}, None, 8),
        ({1: 0.01, 8: 0.02, 32: 0.03, 64: 0.05}, None, 64),
        ({1: 0.01, 8: 0.02, 32: 0.03, 64: 0.05}, 16, 16),
        # On the event loop a batch may take 0.25 ms.
        ({1: 1e-5, 8: 2e-5, 32: 1e-4, 64: 1.5e-4, 128: 2.8e-4}, None, 64),
    ],
)
async def test_batch_size__measured_at_the_start__is_where_most_rows_a_second_are_done(
    bundle: VerifiedBundle,
    monkeypatch: pytest.MonkeyPatch,
    seconds: dict[int, float],
    max_rows: int | None,
    rows: int,
) -> None:
    host = host_of(bundle, max_rows=max_rows)
    module = "mlctl.services.online.models.served_model.warm_up"
    monkeypatch.setattr(module, lambda *_: seconds)
    await host.start()
    assert host.limits is not None
    assert host.limits.max_rows == model_config(host)["max_batch_size"] == rows
    await host.stop()


async def test_batch_size__rows_of_unlike_size__is_the_bundles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = make_text_bundle(tmp_path / "texts")
    host = host_of(bundle)
    module = "mlctl.services.online.models.served_model.warm_up"
    monkeypatch.setattr(module, lambda *_: {1: 0.01, 32: 1.0})
    await host.start()
    assert host.limits is not None
    assert host.limits.max_rows == bundle.manifest.batching.max_rows
    await host.stop()


async def test_live__run_hangs__becomes_false(
    bundle: VerifiedBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, started = threading.Event(), threading.Event()
    clock = ManualClock()

    def stuck(_scorer: Scorer, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        started.set()
        assert gate.wait(20)
        return {"y": inputs["x"]}

    settings = ServerSettings(hang_s=3)
    host = ServedModel(bundle, settings, clock=clock, registry=CollectorRegistry())

    def live() -> bool:
        return host.live

    assert live()
    # Too slow to run on the event loop, by what the warm-up is told.
    monkeypatch.setattr(
        "mlctl.services.online.models.served_model.warm_up", lambda *_: {1: 0.1, 32: 0.1}
    )
    await host.start()
    monkeypatch.setattr(Scorer, "run", stuck)
    waiting = host.infer({"x": ROW})
    await asyncio.to_thread(started.wait, 20)
    clock.advance(2.9)
    assert live()
    clock.advance(0.2)
    assert not live()
    waiting.cancel()
    await host.stop(grace=0.01)  # does not wait for it
    gate.set()
    assert not live()


async def test_live__request_of_many_rows__has_the_time_of_its_batches(
    bundle: VerifiedBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 5
    begun, allowed = threading.Semaphore(0), threading.Semaphore(0)
    clock = ManualClock()

    def slow(_scorer: Scorer, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        begun.release()
        assert allowed.acquire(timeout=20)
        return {"y": inputs["x"]}

    host = ServedModel(bundle, ServerSettings(hang_s=3), clock=clock, registry=CollectorRegistry())
    monkeypatch.setattr(
        "mlctl.services.online.models.served_model.warm_up", lambda *_: {1: 0.1, 32: 0.1}
    )
    await host.start()
    monkeypatch.setattr(Scorer, "_run_once", slow)
    waiting = host.infer({"x": np.repeat(ROW, 32 * steps, axis=0)})
    for _ in range(steps):
        assert await asyncio.to_thread(begun.acquire, timeout=20)
        clock.advance(2.9)  # each step has the time of a batch
        assert host.live
        allowed.release()
    assert (await waiting).outputs["y"].shape == (32 * steps, 4)
    await host.stop()


@pytest.mark.parametrize("columns", [4, DYNAMIC])
async def test_infer__rows_of_any_size__run_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    made = make_bundle(tmp_path / "b")
    x, y = (
        TensorSpec(name=name, dtype=Datatype.FP32, shape=(DYNAMIC, columns)) for name in ("x", "y")
    )
    signature = Signature(inputs=(x,), outputs=(y,))
    threads = []

    def run(_scorer: Scorer, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        threads.append(threading.current_thread())
        return {"y": inputs["x"]}

    changes = {"signature": signature}
    host = host_of(seal(made.root, made.manifest.model_copy(update=changes)))
    monkeypatch.setattr(
        "mlctl.services.online.models.served_model.warm_up", lambda *_: {1: 1e-5, 32: 1e-5}
    )
    await host.start()
    monkeypatch.setattr(Scorer, "run", run)
    await host.infer({"x": ROW})
    await host.stop()
    assert (threads[0] is threading.main_thread()) == (columns == 4)


async def test_infer__high_priority__is_answered(bundle: VerifiedBundle) -> None:
    host = host_of(bundle)
    await host.start()
    answer = await host.infer({"x": ROW}, None, Priority.HIGH)
    np.testing.assert_allclose(answer.outputs["y"], expected(ROW))
    await host.stop()


@pytest.mark.parametrize("constraints", [None, InputConstraints(ranges={"ids": (-10, 9)})])
async def test_host__one_request_of_a_batch_is_rejected_by_the_model__its_neighbours_are_answered(
    tmp_path: Path, constraints: InputConstraints | None
) -> None:
    bundle = make_lookup_bundle(tmp_path / "b", constraints=constraints)

    host = host_of(bundle, max_wait_ms=50)
    await host.start()
    weights = np.ones((1, 2), np.float32)
    found = await asyncio.gather(
        *(host.infer({"ids": np.array([[1, top]]), "weights": weights}) for top in (2, 99, 4)),
        return_exceptions=True,
    )
    await host.stop()
    first, bad, last = found
    assert isinstance(first, Answer)
    assert isinstance(last, Answer)
    assert [first.outputs["y"].item(), last.outputs["y"].item()] == [3, 5]
    assert isinstance(bad, MlctlError)
    assert bad.code is ErrorCode.INVALID_INPUT
