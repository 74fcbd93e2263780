import numpy as np
import pytest
from pydantic import ValidationError

from bundle.tensors import Datatype, Signature, TensorSpec


@pytest.mark.parametrize("dtype", [d for d in Datatype if d is not Datatype.BYTES])
def test_wire_size_is_numpys(dtype: Datatype) -> None:
    assert np.dtype(dtype.numpy_name).itemsize == dtype.itemsize


def test_bytes_elements_have_no_fixed_size() -> None:
    assert Datatype.BYTES.itemsize is None
    assert np.dtype(Datatype.BYTES.numpy_name) == np.dtype(object)


@pytest.mark.parametrize("dtype", [d for d in Datatype if d is not Datatype.BF16])
def test_numpy_names_map_back(dtype: Datatype) -> None:
    assert Datatype.from_numpy_name(dtype.numpy_name) is dtype


def test_a_numpy_dtype_outside_the_protocol_is_an_error() -> None:
    with pytest.raises(ValueError, match="complex64"):
        Datatype.from_numpy_name("complex64")


def test_a_tensor_that_fits() -> None:
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
def test_a_misfit_names_tensor_field_and_expectation(
    dtype: Datatype, shape: tuple[int, ...], words: str
) -> None:
    spec = TensorSpec(name="x", dtype=Datatype.FP32, shape=(-1, 2))
    found = spec.mismatch(dtype, shape)
    assert found is not None
    assert "tensor 'x'" in found
    assert words in found


def test_a_signature_is_bounded_when_its_rows_say_how_large_its_inputs_are() -> None:
    def bounded(dtype: str, *shape: int, output: tuple[int, ...] = (-1, 2)) -> bool:
        given = {"name": "x", "dtype": dtype, "shape": shape}
        answer = {"name": "y", "dtype": "FP32", "shape": output}
        return Signature.model_validate({"inputs": [given], "outputs": [answer]}).bounded

    assert bounded("FP32", -1, 4)
    assert not bounded("FP32", -1, 4, -1)
    assert not bounded("BYTES", -1, 4)
    assert not bounded("FP32", -1, 4, output=(2,))  # no batches: the first is a size like others
    assert bounded("FP32", 3, 4, output=(2,))


def test_a_signature_is_batched_when_every_tensor_has_a_dynamic_first_dimension() -> None:
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
