"""Typed messages: as protoc has them, and every datatype there and back."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from hypothesis import given
from hypothesis import strategies as st

from mlctl.bento.clients.languages import proto_files, write_files
from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.grpc.typed.codec import TypedCodec
from mlctl.services.online.grpc.typed.descriptors import make_file
from mlctl.services.online.grpc.typed.layout import lay_out, package_name
from mlctl.services.online.openapi.model import ApiModel, describe
from mlctl.services.protocol.json_body import MAX_VALUES
from tests.bento.clients.models import DIGEST, every_datatype, odd

protoc: Any = import_module("grpc_tools.protoc")
EVERY = describe("every-type", DIGEST, every_datatype())


def compiled(model: ApiModel, folder: Path) -> Any:
    """What protoc understands of the printed file."""
    files = proto_files(model)
    write_files(folder, files)
    target = folder / "set.binpb"
    options = [f"-I{folder}", f"--descriptor_set_out={target}", "--fatal_warnings"]
    assert protoc.main(["protoc", *options, *files]) == 0
    (file,) = FileDescriptorSet.FromString(target.read_bytes()).file
    return file


def classes(model: ApiModel) -> Any:
    """The public message classes of a model's service."""
    layout = lay_out(model)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(make_file(layout).SerializeToString())
    return [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{layout.package}.{name}"))
        for name in ("Request", "Response")
    ]


def codec(model: ApiModel, signature: Signature) -> TypedCodec:
    return TypedCodec(lay_out(model), model.digest, signature)


def one(dtype: Datatype, *shape: int) -> tuple[TypedCodec, Any]:
    """A codec and the request class of a model that gives back its only tensor."""
    spec = TensorSpec(name="a", dtype=dtype, shape=shape)
    signature = Signature(inputs=(spec,), outputs=(spec,))
    model = describe("one", DIGEST, signature)
    return codec(model, signature), classes(model)[0]


@pytest.mark.parametrize("model", [EVERY, odd()], ids=["every", "odd"])
def test_proto_file__compiled_by_protoc__equals_the_servers(
    model: ApiModel, tmp_path: Path
) -> None:
    assert compiled(model, tmp_path) == make_file(lay_out(model))


def values(dtype: Datatype) -> np.ndarray:
    """2 x 3 x 2 values, with the ends of the datatype's range."""
    if dtype is Datatype.BYTES:
        texts = np.empty(12, dtype=object)
        texts[:] = [bytes([number, 255]) * number for number in range(12)]
        return texts.reshape(2, 3, 2)
    kind = np.dtype(dtype.numpy_name)
    array = np.arange(12).astype(kind).reshape(2, 3, 2)
    if kind.kind in "iuf":
        info = np.finfo(kind) if kind.kind == "f" else np.iinfo(kind)
        array[0, 0], array[1, 1, 0] = (info.min, info.max), info.max
    return array


def test_typed_codec__each_datatype__is_read_back() -> None:
    signature = every_datatype()
    layout, own = lay_out(EVERY), codec(EVERY, signature)
    request_class, response_class = classes(EVERY)
    given = {spec.name: values(spec.dtype) for spec in signature.inputs}
    answer = response_class.FromString(own.encode(given).SerializeToString())
    assert answer.model_digest == DIGEST
    request = request_class()
    for asked, told in zip(layout.request, layout.response, strict=True):
        assert list(getattr(answer, told.shape or "")) == [2, 3, 2]
        content = getattr(answer, told.name)
        if asked.scalar is None:
            setattr(request, asked.name, content)
        else:
            getattr(request, asked.name).extend(content)
        getattr(request, asked.shape or "").extend([2, 3, 2])
    found = own.decode(request.SerializeToString())
    assert found.inputs.keys() == given.keys() == found.outputs.keys()
    for name, array in given.items():
        np.testing.assert_array_equal(found.inputs[name], array)
        assert found.inputs[name].dtype == array.dtype


@pytest.mark.parametrize("dtype", [Datatype.FP32, Datatype.FP64])
def test_decode__floats_unpacked_or_in_parts__are_read(dtype: Datatype) -> None:
    own, kind = one(dtype, DYNAMIC)
    width = dtype.itemsize or 0
    array = np.arange(5).astype(dtype.numpy_name)
    tag = 11 << 3 | (5 if width == 4 else 1)
    single = b"".join(bytes([tag]) + each.tobytes() for each in array)
    pieces = kind(a=array[:2]).SerializeToString() + kind(a=array[2:]).SerializeToString()
    mixed = kind(a=array[:1]).SerializeToString() + single[width + 1 :]
    later = kind(a=array).SerializeToString() + b"\xf8\x07\x01"  # a field of another version
    for message in (single, pieces, mixed, later):
        np.testing.assert_array_equal(own.decode(message).inputs["a"], array)


CODECS = [codec(EVERY, every_datatype()), one(Datatype.FP32, DYNAMIC, 2)[0]]


def refusal(own: TypedCodec, message: Any) -> MlctlError:
    with pytest.raises(MlctlError) as caught:
        own.decode(message.SerializeToString())
    return caught.value


def test_decode__values_that_do_not_fit__are_named() -> None:
    own, kind = one(Datatype.INT8, DYNAMIC)
    assert "'a'" in refusal(own, kind(a=[128])).message
    own, kind = one(Datatype.FP16, 2)
    assert "'a'" in refusal(own, kind(a=b"abc")).message
    own, kind = one(Datatype.INT32, 3)
    assert "field a has 2 elements" in refusal(own, kind(a=[1, 2])).message
    own, kind = one(Datatype.INT64, DYNAMIC, DYNAMIC)
    error = refusal(own, kind(a=[1, 2]))
    assert "do not give the shape" in error.message
    assert "a_shape" in error.hint
    own, kind = one(Datatype.BOOL, DYNAMIC)
    error = refusal(own, kind(a=[True] * (MAX_VALUES + 1)))
    assert error.code is ErrorCode.PAYLOAD_TOO_LARGE


def test_decode__invalid_shape__is_rejected_before_values() -> None:
    own, kind = one(Datatype.FP32, DYNAMIC, DYNAMIC)
    for shape, said in (
        ([1] * 100_000, "100000 dimensions"),
        ([1 << 31, 1 << 31], "more than"),
        ([(1 << 63) - 1, 1], "not a size"),
        ([3, 1], "4 bytes of data"),
    ):
        assert said in refusal(own, kind(a=[1], a_shape=shape)).message
    assert own.decode(b"\x5a\0" * 100_000).inputs == {}


def test_decode__missing_tensor__is_left_to_the_model() -> None:
    own, kind = one(Datatype.FP32, DYNAMIC)
    assert own.decode(b"").inputs == {}
    assert own.decode(kind(a_shape=[0]).SerializeToString()).inputs["a"].shape == (0,)
    own, kind = one(Datatype.INT64)
    assert own.decode(kind(a=[7]).SerializeToString()).inputs["a"] == 7


@given(st.lists(st.tuples(st.integers(0, 300), st.binary(max_size=40)), max_size=12), st.binary())
def test_decode__any_fields__are_read_or_rejected(
    fields: list[tuple[int, bytes]], rest: bytes
) -> None:
    message = b"".join(
        bytes([tag & 0x7F | 0x80, tag >> 7, len(data)]) + data for tag, data in fields
    )
    for own in CODECS:
        try:
            found = own.decode(message + rest)
        except MlctlError as error:
            assert error.code in (ErrorCode.INVALID_INPUT, ErrorCode.PAYLOAD_TOO_LARGE)
        else:
            assert all(array.size < 2**31 for array in found.inputs.values())


def test_package_name__model_names__are_valid_identifiers() -> None:
    assert [package_name(name) for name in ("tiny-net", "3d.net", "class", "a+b", "--")] == [
        "tiny_net", "model_3d_net", "class_", "a_b", "model",
    ]  # fmt: skip


def test_lay_out__similar_names__are_distinct_in_json() -> None:
    names = ["a", "a shape", "aShape", "model digest"]
    specs = tuple(TensorSpec(name=name, dtype=Datatype.FP32, shape=(DYNAMIC,)) for name in names)
    layout = lay_out(describe("m", DIGEST, Signature(inputs=specs, outputs=specs)))
    fields = [name for each in layout.response for name in (each.name, each.shape or "")]
    plain = [name.replace("_", "") for name in (*fields, "model_digest")]
    assert len(set(plain)) == len(plain)
    assert [each.number for each in layout.response] == [11, 13, 15, 17]
