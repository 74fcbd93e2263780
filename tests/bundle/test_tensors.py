import numpy as np
import pytest
from pydantic import ValidationError

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec


@pytest.mark.parametrize("dtype", [d for d in Datatype if d is not Datatype.BYTES])
def test_itemsize__datatype_of_fixed_size__is_numpys(dtype: Datatype) -> None:
    assert np.dtype(dtype.numpy_name).itemsize == dtype.itemsize


def test_itemsize__bytes__is_none() -> None:
    assert Datatype.BYTES.itemsize is None
    assert np.dtype(Datatype.BYTES.numpy_name) == np.dtype(object)


@pytest.mark.parametrize("dtype", [d for d in Datatype if d is not Datatype.BF16])
def test_numpy_name__each_datatype__maps_back(dtype: Datatype) -> None:
    assert Datatype.from_numpy_name(dtype.numpy_name) is dtype


def test_numpy_name__outside_the_protocol__fails() -> None:
    with pytest.raises(ValueError, match="complex64"):
        Datatype.from_numpy_name("complex64")


def test_mismatch__tensor_fits__is_none() -> None:
    spec = TensorSpec(name="image", dtype=Datatype.FP32, shape=(-1, 1, 8, 8))
    assert spec.mismatch(Datatype.FP32, (5, 1, 8, 8)) is None


@pytest.mark.parametrize(
    ("dtype", "shape", "words"),
    [
        (Datatype.FP64, (5, 2), "datatype is FP64, expected FP32"),
        (Datatype.FP32, (5, 3), "shape is [5, 3], expected [-1, 2]"),
        (Datatype.FP32, (2,), "shape is [2], expected [-1, 2]"),
    ],
)
def test_mismatch__tensor_does_not_fit__names_tensor_field_and_expectation(
    dtype: Datatype, shape: tuple[int, ...], words: str
) -> None:
    spec = TensorSpec(name="x", dtype=Datatype.FP32, shape=(-1, 2))
    found = spec.mismatch(dtype, shape)
    assert found is not None
    assert "tensor 'x'" in found
    assert words in found


def test_signature__rows_give_the_size_of_the_inputs__is_bounded() -> None:
    def bounded(dtype: str, *shape: int, output: tuple[int, ...] = (-1, 2)) -> bool:
        given = {"name": "x", "dtype": dtype, "shape": shape}
        answer = {"name": "y", "dtype": "FP32", "shape": output}
        return Signature.model_validate({"inputs": [given], "outputs": [answer]}).bounded

    assert bounded("FP32", -1, 4)
    assert not bounded("FP32", -1, 4, -1)
    assert not bounded("BYTES", -1, 4)
    assert not bounded("FP32", -1, 4, output=(2,))  # no batches: the first is a size like others
    assert bounded("FP32", 3, 4, output=(2,))


def test_signature__every_first_dimension_is_dynamic__is_batched() -> None:
    spec = {"name": "x", "dtype": "FP32", "shape": [-1, 2]}
    fixed = {"name": "y", "dtype": "FP32", "shape": [1, 2]}
    assert Signature.model_validate({"inputs": [spec], "outputs": [spec]}).batched
    assert not Signature.model_validate({"inputs": [spec], "outputs": [fixed]}).batched


@pytest.mark.parametrize("shape", [[-2], [1] * 17])
def test_tensor__impossible_shape__is_rejected(shape: list[int]) -> None:
    with pytest.raises(ValidationError):
        TensorSpec.model_validate({"name": "x", "dtype": "FP32", "shape": shape})


def test_tensors__duplicate_names__are_rejected() -> None:
    spec = {"name": "x", "dtype": "FP32", "shape": [-1]}
    with pytest.raises(ValidationError, match="duplicate names"):
        Signature.model_validate({"inputs": [spec, spec], "outputs": [spec]})
