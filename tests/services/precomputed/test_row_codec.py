from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mlctl.bundle.tensors import Datatype, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.precomputed.base import StoreError
from mlctl.services.precomputed.row_codec import RowCodec

NUMBERS = (
    TensorSpec(name="score", dtype=Datatype.FP32, shape=(-1, 2)),
    TensorSpec(name="label", dtype=Datatype.INT64, shape=(-1,)),
)
TEXTS = (*NUMBERS, TensorSpec(name="words", dtype=Datatype.BYTES, shape=(-1, 2)))
ROWS = {
    "score": np.array([[0.5, 1.5], [2.5, -1.0]], np.float32),
    "label": np.array([7, -(2**40)]),
    "words": np.array([[b"a", b""], [b"\xff" * 300, b"z"]], object),
}


@pytest.mark.parametrize("outputs", [NUMBERS, TEXTS])
def test_row_codec__encoded_rows__decode_to_the_same(outputs: tuple[TensorSpec, ...]) -> None:
    codec = RowCodec(outputs)
    payloads = codec.encode({spec.name: ROWS[spec.name] for spec in outputs})
    assert all(map(codec.fits, payloads))
    decoded = codec.decode(payloads)
    assert list(decoded) == [spec.name for spec in outputs]
    for name, values in decoded.items():
        assert values.tolist() == ROWS[name].tolist()


@pytest.mark.parametrize("outputs", [NUMBERS, TEXTS])
@pytest.mark.parametrize("damage", [lambda row: row[:-1], lambda row: row + b"x", lambda _: b""])
def test_row_codec__row_of_another_size__does_not_fit(
    outputs: tuple[TensorSpec, ...], damage: Callable[[bytes], bytes]
) -> None:
    codec = RowCodec(outputs)
    payload = damage(codec.encode({spec.name: ROWS[spec.name] for spec in outputs})[1])
    assert not codec.fits(payload)
    with pytest.raises(StoreError, match=r"a row (does not have the size|is shorter|is longer)"):
        codec.decode([payload])


def test_row_codec__output_of_variable_length__is_rejected() -> None:
    with pytest.raises(MlctlError, match="only outputs of") as caught:
        RowCodec([TensorSpec(name="y", dtype=Datatype.FP32, shape=(-1, -1))])
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODEL
