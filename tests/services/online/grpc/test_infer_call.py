from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.core.errors import MlctlError
from mlctl.services.online.grpc.codec import GrpcCodec
from mlctl.services.online.grpc.infer_call import InferMessages
from mlctl.services.protocol.messages import methods
from tests.services.online.grpc.http2.conftest import framed

SPEC = TensorSpec(name="x", dtype=Datatype.FP32, shape=(-1, 2))
MODEL: Any = SimpleNamespace(codec=GrpcCodec("m", "v", Signature(inputs=(SPEC,), outputs=(SPEC,))))
CALL: Any = SimpleNamespace(model=None)


@pytest.fixture
def messages() -> InferMessages:
    models: Any = SimpleNamespace(find=lambda _name, _version: MODEL)
    return InferMessages(models)


def serialized(name: str, *values: float, shape: tuple[int, ...] = (1, 2)) -> bytes:
    message = methods()["ModelInfer"].request(model_name="m", id=name)
    message.inputs.add(name="x", datatype="FP32", shape=shape)
    message.raw_input_contents.append(np.array(values, np.float32).tobytes())
    content: bytes = message.SerializeToString()
    return content


def test_decode__messages_of_one_length__each_has_its_own_id_and_values(
    messages: InferMessages,
) -> None:
    for name, values in (("a", [1.0, 2.0]), ("b", [3.0, 4.0]), ("long", [5.0, 6.0]), ("c", [7, 8])):
        request = messages.decode(framed(serialized(name, *values)), CALL)
        assert (request.id, request.inputs["x"].tolist()) == (name, [values])


def test_decode__same_length_but_another_shape__is_not_taken_for_the_earlier_one(
    messages: InferMessages,
) -> None:
    messages.decode(framed(serialized("a", 1, 2)), CALL)
    with pytest.raises(MlctlError, match=r"expected 16 for shape \[2, 2\]"):
        messages.decode(framed(serialized("a", 1, 2, shape=(2, 2))), CALL)
    assert messages.decode(framed(serialized("b", 1, 2)), CALL).id == "b"


def test_decode__id_field_repeated_many_times__nothing_of_it_is_kept(
    messages: InferMessages,
) -> None:
    messages.decode(framed(serialized("a", 1, 2)), CALL)
    repeated = b"\x1a\x01z" * 100_000 + serialized("a", 3, 4)
    for _ in range(2):
        request = messages.decode(framed(repeated), CALL)
        assert (request.id, request.inputs["x"].tolist()) == ("a", [[3.0, 4.0]])
    kept = [len(content) for each in messages._layouts.values() for _, content in each.fixed]
    assert sum(kept) < 10_000
