from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from mlctl.bundle.manifest import Manifest
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.model.padding import LengthPadding
from mlctl.services.model.run_errors import RunError
from mlctl.services.model.scorer import Scorer
from mlctl.services.model.warmup import best_rows, check_golden, check_padding, warm_up
from mlctl.services.online.settings import ServerSettings
from tests.support.bundles import expected, make_bundle
from tests.support.clock import ManualClock
from tests.support.manifests import manifest_document
from tests.support.sessions import FunctionSession

Run = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


def scorer_of(bundle: VerifiedBundle, run: Run) -> Scorer:
    return Scorer(bundle.manifest, bundle.digest, FunctionSession(run))


def test_check_golden__real_model__passes(bundle: VerifiedBundle) -> None:
    scorer = Scorer.open(bundle, ServerSettings())
    assert check_golden(scorer, bundle)["x"].shape == (8, 4)


def test_check_golden__dependent_rows__passes(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "b", row_independent=False)
    check_golden(Scorer.open(bundle, ServerSettings()), bundle)


@pytest.mark.parametrize("error", [0.1, -0.1, np.nan])
def test_check_golden__other_answers__fails(bundle: VerifiedBundle, error: float) -> None:
    scorer = scorer_of(bundle, lambda inputs: {"y": expected(inputs["x"]) + np.float32(error)})
    with pytest.raises(MlctlError, match="'y'") as caught:
        check_golden(scorer, bundle)
    assert caught.value.code is ErrorCode.PARITY_FAILED


def test_check_golden__rounding_noise__passes(bundle: VerifiedBundle) -> None:
    scorer = scorer_of(bundle, lambda inputs: {"y": expected(inputs["x"]) * np.float32(1.00001)})
    check_golden(scorer, bundle)


def zeros(rows: int = 3) -> dict[str, np.ndarray]:
    return {"x": np.zeros((rows, 4), np.float32)}


def test_warm_up__every_bucket__is_run_and_timed_in_rounds(bundle: VerifiedBundle) -> None:
    clock = ManualClock()
    seen: list[int] = []

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        seen.append(inputs["x"].shape[0])
        clock.advance(inputs["x"].shape[0] / 100)
        return {"y": inputs["x"]}

    measured = warm_up(scorer_of(bundle, run), zeros(), clock.monotonic, 256)
    assert measured == pytest.approx({1: 0.01, 8: 0.08, 32: 0.32})
    assert seen == [1, 8, 32] * 3


@pytest.mark.parametrize("stall", [0.02, 0.3])
def test_warm_up__a_stall_of_the_machine__is_not_what_a_run_takes(
    bundle: VerifiedBundle, stall: float
) -> None:
    clock = ManualClock()
    runs: list[int] = []

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        runs.append(inputs["x"].shape[0])
        stalled = runs.count(runs[-1]) == 2
        clock.advance(stall if stalled else 0.0001)
        return {"y": inputs["x"]}

    measured = warm_up(scorer_of(bundle, run), zeros(), clock.monotonic, 256)
    assert measured == pytest.approx({1: 0.0001, 8: 0.0001, 32: 0.0001})


def dense(rows: int) -> float:
    """A network of 5 MFLOP a row on one core."""
    return 0.0005 + 0.00005 * rows


def cached(rows: int) -> float:
    """A transformer on one core: beyond eight rows its activations leave the cache."""
    return 0.003 + 0.0075 * rows + 0.0012 * max(0, rows - 8)


def flat(_rows: int) -> float:
    """An accelerator that is not full: a batch costs the same whatever its size."""
    return 0.010


def heavy(rows: int) -> float:
    """An accelerator that is not full: its batches soon take 20 ms."""
    return 0.008 + 0.0001 * rows


def measure(
    bundle: VerifiedBundle,
    cost: Callable[[int], float],
    *,
    max_rows: int = 256,
    larger: bool = True,
    drift: float = 1.0,
    run: Run = lambda inputs: {"y": inputs["x"]},
) -> dict[int, float]:
    """What the warm-up measures if each run takes `drift` times as long as the one before it."""
    clock, slower = ManualClock(), 1.0

    def timed(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        nonlocal slower
        clock.advance(cost(inputs["x"].shape[0]) * slower)
        slower *= drift
        return run(inputs)

    scorer = scorer_of(bundle, timed)
    if larger:
        batching = bundle.manifest.batching.model_copy(update={"measure_larger": True})
        scorer.manifest = bundle.manifest.model_copy(update={"batching": batching})
    return warm_up(scorer, zeros(), clock.monotonic, max_rows)


@pytest.mark.parametrize("drift", [1.0, 1.002])
@pytest.mark.parametrize(
    ("cost", "largest", "best"),
    [(dense, 128, 128), (flat, 256, 256), (cached, 32, 8), (heavy, 64, 64)],
)
def test_warm_up__larger_batches__are_timed_while_they_do_more_rows_a_second(
    bundle: VerifiedBundle, cost: Callable[[int], float], largest: int, best: int, drift: float
) -> None:
    measured = measure(bundle, cost, drift=drift)
    assert max(measured) == largest
    assert best_rows(measured) == best


def test_warm_up__sizes_set_by_hand__are_not_exceeded(bundle: VerifiedBundle) -> None:
    assert max(measure(bundle, flat, larger=False)) == 32
    assert max(measure(bundle, flat, max_rows=100)) == 64


def test_warm_up__a_larger_batch_fails_or_answers_otherwise__is_not_used(
    bundle: VerifiedBundle,
) -> None:
    def other_answers(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"y": inputs["x"] + np.float32(len(inputs["x"]) > 64)}

    def out_of_memory(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if len(inputs["x"]) > 64:
            raise RunError("out of memory")
        return {"y": inputs["x"]}

    for run in (other_answers, out_of_memory):
        assert max(measure(bundle, flat, run=run)) == 64


def test_warm_up__activations_take_much_memory__larger_batches_are_not_tried(
    bundle: VerifiedBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident = [0]
    monkeypatch.setattr("mlctl.services.model.warmup._resident_bytes", lambda: resident[0])

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        resident[0] = max(resident[0], len(inputs["x"]) * (3 << 20))
        return {"y": inputs["x"]}

    assert max(measure(bundle, flat, run=run)) == 64  # which took 192 MiB


def test_best_rows__a_little_more__is_no_reason_for_smaller_batches() -> None:
    assert best_rows({8: 0.08, 64: 0.64 * 1.02}) == 64
    assert best_rows({8: 0.08, 64: 0.64 * 1.07}) == 8


def sequence_scorer(run: Run) -> Scorer:
    """A scorer of `run` whose one input and one output are of any length."""
    document = manifest_document()
    for side, name in (("inputs", "x"), ("outputs", "y")):
        document["signature"][side] = [{"name": name, "dtype": "FP32", "shape": [-1, -1]}]
    document["batching"]["pad"] = {"x": 0}
    document["evidence"]["max_abs_error"] = 1e-6
    manifest = Manifest.model_validate(document)
    return Scorer(manifest, manifest.digest, FunctionSession(run))


def test_check_padding__padding_changes_the_answer__fails() -> None:
    rows = {"x": np.arange(1, 13, dtype=np.float32).reshape(2, 6)}

    def check(run: Run) -> None:
        scorer = sequence_scorer(run)
        check_padding(scorer, LengthPadding(scorer.signature, {"x": 0}), rows)

    check(lambda inputs: {"y": inputs["x"] * inputs["x"].sum(axis=1, keepdims=True)})
    with pytest.raises(MlctlError, match="'y' padded, of the golden rows") as caught:
        check(lambda inputs: {"y": inputs["x"] * inputs["x"].mean(axis=1, keepdims=True)})
    assert caught.value.code is ErrorCode.PARITY_FAILED


def test_check_padding__fails_on_shorter_inputs__fails() -> None:
    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if inputs["x"].shape[1] != 6:
            raise RunError("x and mask are of unlike length")
        return {"y": inputs["x"]}

    scorer = sequence_scorer(run)
    lengths = LengthPadding(scorer.signature, {"x": 0})
    with pytest.raises(MlctlError, match="half of a golden row, in x") as caught:
        check_padding(scorer, lengths, {"x": np.ones((2, 6), np.float32)})
    assert caught.value.code is ErrorCode.PARITY_FAILED
    assert "unlike" not in caught.value.message


def test_check_padding__single_column__is_skipped() -> None:
    def never(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        raise AssertionError(inputs)

    scorer = sequence_scorer(never)
    lengths = LengthPadding(scorer.signature, {"x": 0})
    check_padding(scorer, lengths, {"x": np.ones((2, 1), np.float32)})
