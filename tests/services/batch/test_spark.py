"""The function that Spark's workers call, on numpy batches; Spark itself is not needed for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bundle.errors import ErrorCode, MlctlError
from bundle.verify import VerifiedBundle
from services.batch.spark import make_predict
from tests.support import tables
from tests.support.bundles import expected, make_bundle
from tests.support.transforms import make_text_bundle


def test_a_batch_is_answered_as_elsewhere(bundle: VerifiedBundle) -> None:
    x = tables.inputs(300)
    predict = make_predict(str(bundle.root), bundle.digest)()
    np.testing.assert_allclose(predict(x), expected(x), rtol=1e-4, atol=1e-5)
    # Spark's doubles are as good.
    np.testing.assert_array_equal(predict(x.astype(np.float64)), predict(x))


def test_rows_of_a_model_whose_rows_meet_are_asked_alone(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle", row_independent=False)
    x = tables.inputs(9)
    predict = make_predict(str(bundle.root), bundle.digest)()
    np.testing.assert_allclose(predict(x), x * 2 + x, rtol=1e-4, atol=1e-5)


def test_a_batch_of_the_wrong_width_ends_the_task(bundle: VerifiedBundle) -> None:
    predict = make_predict(str(bundle.root), bundle.digest)()
    with pytest.raises(ValueError, match="reshape"):
        predict(np.zeros((3, 5), np.float32))


def test_texts_go_in_and_out_and_a_bad_one_is_named(tmp_path: Path) -> None:
    bundle = make_text_bundle(tmp_path / "bundle")
    predict = make_predict(str(bundle.root), bundle.digest)()
    texts = np.array(["one two", "three three"], object)
    found = predict(texts)
    assert found["kind"].tolist() == ["small", "large"]
    np.testing.assert_allclose(found["total"], [1.5, 3.0])
    texts[1] = ""
    with pytest.raises(ValueError, match=r"row 1 of a batch has no answer: .*no words"):
        predict(texts)


def test_another_bundle_at_that_place_is_not_loaded(tmp_path: Path) -> None:
    meant = make_bundle(tmp_path / "meant")
    other = make_bundle(tmp_path / "other", scale=3.0)
    with pytest.raises(MlctlError) as caught:
        make_predict(str(other.root), meant.digest)()
    assert caught.value.code is ErrorCode.DIGEST_MISMATCH
