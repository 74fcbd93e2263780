from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from mlctl.bundle.manifest import GOLDEN_NAME, Axis, InputConstraints, Manifest
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.model.padding import RowPaddedSession
from mlctl.services.model.run_errors import InputRejectedError, ModelRunError
from mlctl.services.model.scorer import Scorer
from mlctl.services.online.settings import ServerSettings
from tests.support.bundles import LOOKUP_ROWS, expected, make_lookup_bundle
from tests.support.manifests import manifest_document
from tests.support.sessions import FunctionSession


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


def test_scorer__bundle__is_opened_and_run(bundle: VerifiedBundle) -> None:
    scorer = Scorer.open(bundle, ServerSettings())
    assert scorer.digest == bundle.digest
    assert scorer.check({"x": rows(3)}) == 3
    np.testing.assert_allclose(scorer.run({"x": rows(3)})["y"], expected(rows(3)))


def test_scorer__more_rows_than_a_batch__gives_the_same_answers(bundle: VerifiedBundle) -> None:
    scorer = Scorer.open(bundle, ServerSettings())
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
def test_check__wrong_input__names_what_is_expected(
    change: dict[str, np.ndarray], message: str
) -> None:
    scorer = two_inputs({})
    with pytest.raises(MlctlError, match=message) as caught:
        scorer.check({**good(1), **change})
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_check__missing_input__is_named() -> None:
    with pytest.raises(MlctlError, match="'b' is missing"):
        two_inputs({}).check({"a": np.zeros((1, 2), np.float32)})


@pytest.mark.parametrize(
    "answer",
    [{}, {"y": np.zeros((1, 2), np.float32)}, {"y": np.zeros((2, 5), np.float32)}],
    ids=["none", "too few rows", "too wide"],
)
def test_run__outputs_break_the_signature__fails(answer: dict[str, np.ndarray]) -> None:
    with pytest.raises(MlctlError, match="output 'y'") as caught:
        two_inputs(answer).run(good(2))
    assert caught.value.code is ErrorCode.INTERNAL


def test_run__runtime_fails__hides_its_message() -> None:
    secret = RuntimeError("/srv/model.onnx: node 7 failed")
    with pytest.raises(MlctlError) as caught:
        two_inputs(secret).run(good(1))
    assert "srv" not in caught.value.message
    assert isinstance(caught.value, ModelRunError)
    assert caught.value.__cause__ is not None
    assert caught.value.__cause__.__cause__ is secret


def test_run__internal_defect__is_no_model_error() -> None:
    class Broken:
        provider = "memory"

        def run(self, _inputs: object) -> dict[str, np.ndarray]:
            raise NameError("a name of ours")

    scorer = two_inputs({})
    scorer._session = Broken()
    with pytest.raises(MlctlError, match="could not be run") as caught:
        scorer.run(good(1))
    assert caught.value.code is ErrorCode.INTERNAL
    assert not isinstance(caught.value, ModelRunError)


def test_scorer__bf16__is_rejected_at_load(bundle: VerifiedBundle) -> None:
    document = bundle.manifest.model_dump()
    document["signature"]["inputs"][0]["dtype"] = "BF16"
    odd = VerifiedBundle(bundle.root, Manifest.model_validate(document), bundle.digest)
    with pytest.raises(MlctlError, match="BF16") as caught:
        Scorer.open(odd, ServerSettings())
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL


def test_scorer__pad_rows__runs_the_bundles_batch_sizes(bundle: VerifiedBundle) -> None:
    rows = np.arange(20, dtype=np.float32).reshape(5, 4)
    for pad_rows in (None, True, False):
        scorer = Scorer.open(bundle, ServerSettings(), pad_rows=pad_rows)
        np.testing.assert_allclose(scorer.run({"x": rows})["y"], expected(rows))
        assert isinstance(scorer._session, RowPaddedSession) == (pad_rows is True)


def lookup(ids: list[int], weights: int) -> dict[str, np.ndarray]:
    """One row of `ids`, with so many weights."""
    return {"ids": np.array([ids], np.int64), "weights": np.ones((1, weights), np.float32)}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (lookup([1, 99], 2), "idx=99 must be within the inclusive range"),
        (lookup([1, 2, 3], 2), "broadcast an axis by a dimension other than 1"),
    ],
)
def test_scorer__runtime_rejects_the_inputs__is_invalid_input(
    tmp_path: Path, inputs: dict[str, np.ndarray], message: str
) -> None:
    scorer = Scorer.open(make_lookup_bundle(tmp_path / "b"), ServerSettings())
    with pytest.raises(MlctlError, match=message) as caught:
        scorer.run(inputs)
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert "Name:" not in caught.value.message
    assert scorer.run(lookup([1, 2], 2))["y"] == [[3]]


def test_scorer__golden_row_is_rejected_as_well__is_the_models_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = make_lookup_bundle(tmp_path / "b")
    scorer = Scorer.open(bundle, ServerSettings())

    def broken(_inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        raise InputRejectedError("indices element out of data bounds")

    class Broken:
        provider = "cpu"
        run = staticmethod(broken)

    scorer._session = Broken()
    with pytest.raises(ModelRunError, match="failed on these inputs") as caught:
        scorer.run(lookup([1], 1))
    assert caught.value.code is ErrorCode.INTERNAL
    assert "does not answer a golden row" in caplog.text


def test_scorer__golden_rows_unknown_or_gone__is_the_models_fault(tmp_path: Path) -> None:
    bundle = make_lookup_bundle(tmp_path / "b")
    scorer = Scorer.open(bundle, ServerSettings())
    bundle.path(GOLDEN_NAME).unlink()
    with pytest.raises(ModelRunError):
        scorer.run(lookup([99], 1))
    with pytest.raises(ModelRunError):
        Scorer(bundle.manifest, bundle.digest, scorer._session).run(lookup([99], 1))


def test_scorer__transform_makes_inputs_that_the_runtime_rejects__is_the_models_fault(
    tmp_path: Path,
) -> None:
    scorer = Scorer.open(make_lookup_bundle(tmp_path / "b"), ServerSettings())

    class Doubling:
        yields = False

        def preprocess(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {**inputs, "ids": inputs["ids"] * 2}

        def postprocess(self, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            return outputs

    scorer._transform = Doubling()  # type: ignore[assignment]
    with pytest.raises(ModelRunError):
        scorer.run(lookup([9], 1))


def constrained(path: Path) -> Scorer:
    """A lookup whose manifest says what its inputs must be."""
    axes = tuple(Axis(input=name, axis=1) for name in ("ids", "weights"))
    ranges = {"ids": (-LOOKUP_ROWS, LOOKUP_ROWS - 1)}
    constraints = InputConstraints(ranges=ranges, equal_lengths=(axes,))
    return Scorer.open(make_lookup_bundle(path, constraints=constraints), ServerSettings())


def test_scorer__constraints_broken__is_refused_before_the_model_runs(tmp_path: Path) -> None:
    scorer = constrained(tmp_path / "b")
    for ids in ([-10, 9], [0]):
        assert scorer.check(lookup(ids, len(ids))) == 1
        scorer.run(lookup(ids, len(ids)))
    scorer._session = None  # type: ignore[assignment]
    with pytest.raises(MlctlError, match="'weights' has size 2 in dimension 1, expected 3") as size:
        scorer.check(lookup([1, 2, 3], 2))
    assert size.value.code is ErrorCode.INVALID_INPUT
    for wrong in (10, -11):
        with pytest.raises(MlctlError, match=f"'ids' has the value {wrong}, expected -10 to 9"):
            scorer.run(lookup([1, wrong], 2))
        with pytest.raises(MlctlError, match=f"'ids' has the value {wrong}"):
            next(scorer.steps(lookup([1, wrong], 2), whole=True))


def test_scorer__constrained_input_without_values__is_in_range(tmp_path: Path) -> None:
    assert constrained(tmp_path / "b").run(lookup([], 0))["y"] == [[0]]
