"""Raw messages."""

from __future__ import annotations

import numpy as np
import pytest

from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.core.errors import MlctlError
from mlctl.services.stream.payloads import PayloadRequest, open_payload


def _spec(name: str, dtype: Datatype, *row: int) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=(DYNAMIC, *row))


FOUR = Signature(
    inputs=(_spec("x", Datatype.FP32, 4),),
    outputs=(_spec("y", Datatype.FP32, 2), _spec("label", Datatype.BYTES)),
)
PLAIN = Signature(
    inputs=(_spec("flag", Datatype.BOOL), _spec("a", Datatype.INT16, 2)),
    outputs=(_spec("y", Datatype.FP64), _spec("z", Datatype.UINT8, 3)),
)
RAGGED = Signature(inputs=(_spec("x", Datatype.FP32, DYNAMIC),), outputs=FOUR.outputs)


def test_raw_payload__row__is_its_bytes() -> None:
    payload = open_payload(PayloadRequest("raw"), PLAIN)
    row = np.dtype([("flag", "?"), ("a", "<i2", 2)])
    table = np.array([(True, (1, -2)), (False, (3, 4)), (True, (5, 6))], row)
    values = [table[:1].tobytes(), b"", table[1:].tobytes(), b"\1\0", b"\2\0\0\0\0"]
    (found,) = payload.decode(values)
    assert (list(found.kept), list(found.rows)) == ([0, 2], [1, 2])
    assert found.inputs["a"].tolist() == [[1, -2], [3, 4], [5, 6]]
    assert found.inputs["flag"].tolist() == [True, False, True]
    assert found.inputs["a"].flags.c_contiguous
    assert set(found.rejected) == {1, 3, 4}
    assert "neither 0 nor 1" in found.rejected[4]
    outputs = {"y": np.arange(3.0), "z": np.arange(9, dtype=np.uint8).reshape(3, 3)}
    one, two = payload.encode(outputs, found.rows)
    assert one == np.float64(0).tobytes() + bytes([0, 1, 2])
    assert len(two) == 2 * (8 + 3)
    assert payload.encode(outputs, [1, 1, 1])[2] == two[11:]


def test_raw_payload__rows_without_a_fixed_size__are_rejected() -> None:
    for wanted, signature in (
        (PayloadRequest("raw"), FOUR),
        (PayloadRequest("raw"), RAGGED),
        (PayloadRequest("raw", keep=("id",)), PLAIN),
    ):
        with pytest.raises(MlctlError):
            open_payload(wanted, signature)
