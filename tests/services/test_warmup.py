from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from bundle.clock import ManualClock
from bundle.errors import ErrorCode, MlctlError
from bundle.verify import VerifiedBundle
from services.scorer import Scorer
from services.session import FunctionSession
from services.settings import Settings
from services.warmup import check_golden, warm_up
from tests.support.bundles import expected, make_bundle

Run = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


def scorer_of(bundle: VerifiedBundle, run: Run) -> Scorer:
    return Scorer(bundle.manifest, bundle.digest, FunctionSession(run))


def test_the_real_model_reproduces_its_golden_rows(bundle: VerifiedBundle) -> None:
    scorer = Scorer.open(bundle, Settings())
    assert check_golden(scorer, bundle)["x"].shape == (8, 4)


def test_a_model_whose_rows_depend_on_each_other_too(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "b", row_independent=False)
    check_golden(Scorer.open(bundle, Settings()), bundle)


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
    assert warm_up(scorer_of(bundle, run), rows, clock) == pytest.approx(0.32)
    assert seen == [1, 1, 8, 8, 32, 32]
