from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from bundle.clock import ManualClock
from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import Manifest
from bundle.verify import VerifiedBundle
from services.online.settings import ServerSettings
from services.runtime.padding import LengthPadding
from services.runtime.run_errors import RunError
from services.runtime.scorer import Scorer
from services.runtime.warmup import check_golden, check_padding, warm_up
from tests.support.bundles import expected, make_bundle
from tests.support.manifests import manifest_document
from tests.support.sessions import FunctionSession

Run = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


def scorer_of(bundle: VerifiedBundle, run: Run) -> Scorer:
    return Scorer(bundle.manifest, bundle.digest, FunctionSession(run))


def test_the_real_model_reproduces_its_golden_rows(bundle: VerifiedBundle) -> None:
    scorer = Scorer.open(bundle, ServerSettings())
    assert check_golden(scorer, bundle)["x"].shape == (8, 4)


def test_a_model_whose_rows_depend_on_each_other_too(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "b", row_independent=False)
    check_golden(Scorer.open(bundle, ServerSettings()), bundle)


@pytest.mark.parametrize("error", [0.1, -0.1, np.nan])
def test_other_answers_are_refused(bundle: VerifiedBundle, error: float) -> None:
    scorer = scorer_of(bundle, lambda inputs: {"y": expected(inputs["x"]) + np.float32(error)})
    with pytest.raises(MlctlError, match="'y'") as caught:
        check_golden(scorer, bundle)
    assert caught.value.code is ErrorCode.PARITY_FAILED


def test_the_noise_of_another_processor_is_not(bundle: VerifiedBundle) -> None:
    scorer = scorer_of(bundle, lambda inputs: {"y": expected(inputs["x"]) * np.float32(1.00001)})
    check_golden(scorer, bundle)


def test_every_bucket_is_run_and_the_slowest_counts(bundle: VerifiedBundle) -> None:
    clock = ManualClock()
    seen: list[int] = []

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        seen.append(inputs["x"].shape[0])
        clock.advance(inputs["x"].shape[0] / 100)
        return {"y": inputs["x"]}

    rows = {"x": np.zeros((3, 4), np.float32)}
    measured = warm_up(scorer_of(bundle, run), rows, clock)
    assert measured == pytest.approx({1: 0.01, 8: 0.08, 32: 0.32})
    assert seen == [1] * 6 + [8] * 3 + [32] * 3


@pytest.mark.parametrize(("stall", "count"), [(0.02, 6), (0.2, 3)])
def test_a_stall_while_a_quick_model_is_timed_is_not_what_it_takes(
    bundle: VerifiedBundle, stall: float, count: int
) -> None:
    clock = ManualClock()
    runs: list[int] = []

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        runs.append(inputs["x"].shape[0])
        stalled = runs.count(runs[-1]) == 2
        clock.advance(stall if stalled else 0.0001)
        return {"y": inputs["x"]}

    measured = warm_up(scorer_of(bundle, run), {"x": np.zeros((3, 4), np.float32)}, clock)
    assert measured == pytest.approx({1: 0.0001, 8: 0.0001, 32: 0.0001})
    assert runs == [1] * count + [8] * count + [32] * count


def sequence_scorer(run: Run) -> Scorer:
    """A scorer of `run` whose one input and one output are of any length."""
    document = manifest_document()
    for side, name in (("inputs", "x"), ("outputs", "y")):
        document["signature"][side] = [{"name": name, "dtype": "FP32", "shape": [-1, -1]}]
    document["batching"]["pad"] = {"x": 0}
    document["evidence"]["max_abs_error"] = 1e-6
    manifest = Manifest.model_validate(document)
    return Scorer(manifest, manifest.digest, FunctionSession(run))


def test_a_model_that_padding_disturbs_is_refused() -> None:
    rows = {"x": np.arange(1, 13, dtype=np.float32).reshape(2, 6)}

    def check(run: Run) -> None:
        scorer = sequence_scorer(run)
        check_padding(scorer, LengthPadding(scorer.signature, {"x": 0}), rows)

    check(lambda inputs: {"y": inputs["x"] * inputs["x"].sum(axis=1, keepdims=True)})
    with pytest.raises(MlctlError, match="'y' padded, of the golden rows") as caught:
        check(lambda inputs: {"y": inputs["x"] * inputs["x"].mean(axis=1, keepdims=True)})
    assert caught.value.code is ErrorCode.PARITY_FAILED


def test_a_model_that_fails_on_a_half_of_its_inputs_cannot_be_padded() -> None:
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


def test_a_single_column_proves_nothing_about_padding() -> None:
    def never(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        raise AssertionError(inputs)

    scorer = sequence_scorer(never)
    lengths = LengthPadding(scorer.signature, {"x": 0})
    check_padding(scorer, lengths, {"x": np.ones((2, 1), np.float32)})
