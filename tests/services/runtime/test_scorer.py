from collections.abc import Mapping

import numpy as np
import pytest

from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import Manifest
from bundle.verify import VerifiedBundle
from services.runtime.faults import ModelError
from services.runtime.padding import RowPaddedSession
from services.runtime.scorer import Scorer
from services.runtime.session import FunctionSession
from services.settings import Settings
from tests.support.bundles import expected
from tests.support.manifests import manifest_document


def rows(count: int) -> np.ndarray:
    return np.arange(count * 4, dtype=np.float32).reshape(count, 4)


def two_inputs(answer: dict[str, np.ndarray] | Exception) -> Scorer:
    document = manifest_document()
    document["signature"] = {
        "inputs": [
            {"name": "a", "dtype": "FP32", "shape": [-1, 2]},
            {"name": "b", "dtype": "INT64", "shape": [-1]},
        ],
        "outputs": [{"name": "y", "dtype": "FP32", "shape": [-1, 2]}],
    }

    def run(_inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Scorer(Manifest.model_validate(document), "0" * 64, FunctionSession(run))


def good(count: int) -> dict[str, np.ndarray]:
    return {"a": np.zeros((count, 2), np.float32), "b": np.zeros(count, np.int64)}


def test_opens_and_runs_a_bundle(bundle: VerifiedBundle) -> None:
    scorer = Scorer.open(bundle, Settings())
    assert scorer.digest == bundle.digest
    assert scorer.check({"x": rows(3)}) == 3
    np.testing.assert_allclose(scorer.run({"x": rows(3)})["y"], expected(rows(3)))


def test_more_rows_than_a_batch_give_the_same_answers(bundle: VerifiedBundle) -> None:
    scorer = Scorer.open(bundle, Settings())
    x = rows(2 * scorer.max_rows + 1)
    np.testing.assert_allclose(scorer.run({"x": x})["y"], expected(x), rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": np.zeros((1, 2), np.float64)}, "'a'.*float64.*expected float32"),
        ({"a": np.zeros((1, 3), np.float32)}, r"'a'.*\[1, 3\].*\[-1, 2\]"),
        ({"a": np.zeros(2, np.float32)}, r"'a'.*\[2\]"),
        ({"b": np.zeros(4, np.int64)}, "'b' has 4 rows.*'a' has 1"),
        ({"c": np.zeros(1)}, "'c' is unknown.*'a', 'b'"),
        (good(0), "no rows"),
    ],
)
def test_wrong_inputs_are_told_what_is_expected(
    change: dict[str, np.ndarray], message: str
) -> None:
    scorer = two_inputs({})
    with pytest.raises(MlctlError, match=message) as caught:
        scorer.check({**good(1), **change})
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_a_missing_input_is_named() -> None:
    with pytest.raises(MlctlError, match="'b' is missing"):
        two_inputs({}).check({"a": np.zeros((1, 2), np.float32)})


@pytest.mark.parametrize(
    "answer",
    [{}, {"y": np.zeros((1, 2), np.float32)}, {"y": np.zeros((2, 5), np.float32)}],
    ids=["none", "too few rows", "too wide"],
)
def test_outputs_that_break_the_signature_are_errors(answer: dict[str, np.ndarray]) -> None:
    with pytest.raises(MlctlError, match="output 'y'") as caught:
        two_inputs(answer).run(good(2))
    assert caught.value.code is ErrorCode.INTERNAL


def test_the_runtimes_words_stay_inside() -> None:
    secret = RuntimeError("/srv/model.onnx: node 7 failed")
    with pytest.raises(MlctlError) as caught:
        two_inputs(secret).run(good(1))
    assert "srv" not in caught.value.message
    assert isinstance(caught.value, ModelError)
    assert caught.value.__cause__ is not None
    assert caught.value.__cause__.__cause__ is secret


def test_a_defect_of_ours_is_not_the_models() -> None:
    class Broken:
        provider = "memory"

        def run(self, _inputs: object) -> dict[str, np.ndarray]:
            raise NameError("a name of ours")

    scorer = two_inputs({})
    scorer._session = Broken()
    with pytest.raises(MlctlError, match="could not be asked") as caught:
        scorer.run(good(1))
    assert caught.value.code is ErrorCode.INTERNAL
    assert not isinstance(caught.value, ModelError)


def test_bf16_is_refused_at_load(bundle: VerifiedBundle) -> None:
    document = bundle.manifest.model_dump()
    document["signature"]["inputs"][0]["dtype"] = "BF16"
    odd = VerifiedBundle(bundle.root, Manifest.model_validate(document), bundle.digest)
    with pytest.raises(MlctlError, match="BF16") as caught:
        Scorer.open(odd, Settings())
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL


def test_batches_are_of_the_bundles_sizes_where_that_is_asked_for(bundle: VerifiedBundle) -> None:
    rows = np.arange(20, dtype=np.float32).reshape(5, 4)
    for pad_rows in (None, True, False):
        scorer = Scorer.open(bundle, Settings(pad_rows=pad_rows))
        np.testing.assert_allclose(scorer.run({"x": rows})["y"], expected(rows))
        assert isinstance(scorer._session, RowPaddedSession) == (pad_rows is True)
