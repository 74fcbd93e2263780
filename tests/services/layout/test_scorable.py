"""The model of a batch: found, verified, and how many rows it takes at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlctl.bento.packaging import BuiltBento
from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.layout.scorable import (
    check_batched,
    find_scorable,
    open_scorer,
    unit_rows,
)


def test_find_scorable__folder__is_verified(bundle: VerifiedBundle) -> None:
    assert find_scorable(str(bundle.root)).digest == bundle.digest
    (bundle.root / "model.onnx").write_bytes(b"other")
    with pytest.raises(MlctlError) as caught:
        find_scorable(str(bundle.root))
    assert caught.value.code is ErrorCode.FILE_ALTERED


@pytest.mark.slow
def test_find_scorable__tag_or_folder__is_the_same(
    built: BuiltBento, store_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENTOML_HOME", str(store_home))
    assert find_scorable(built.tag).digest == find_scorable(str(built.path)).digest == built.digest


def _shaped(bundle: VerifiedBundle, *shape: int) -> VerifiedBundle:
    spec = TensorSpec(name="x", dtype=Datatype.FP32, shape=shape)
    signature = Signature(inputs=(spec,), outputs=bundle.manifest.signature.outputs)
    manifest = bundle.manifest.model_copy(update={"signature": signature})
    return VerifiedBundle(bundle.root, manifest, bundle.digest)


@pytest.mark.parametrize(
    ("shape", "rows"), [((-1, 4), 20_000), ((-1, 3, 224, 224), 55), ((-1, -1), 20_000)]
)
def test_unit_rows__larger_rows__are_fewer(
    bundle: VerifiedBundle, shape: tuple[int, ...], rows: int
) -> None:
    assert unit_rows(_shaped(bundle, *shape)) == rows


def test_check_batched__no_batch_dimension__is_rejected(bundle: VerifiedBundle) -> None:
    check_batched(bundle)
    with pytest.raises(MlctlError, match="no batch dimension") as caught:
        check_batched(_shaped(bundle, 4))
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL


def test_open_scorer__light_model__takes_more_rows(bundle: VerifiedBundle) -> None:
    assert bundle.manifest.batching.max_rows == 32
    scorer = open_scorer(bundle)
    assert (scorer.max_rows, scorer.thread_safe) == (4096, True)
    assert open_scorer(bundle, 7).max_rows == 7
