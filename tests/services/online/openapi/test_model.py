from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.services.online.openapi.model import describe, plain_name
from tests.bento.clients.models import DIGEST, odd


def test_describe__any_tensor_names__become_distinct_identifiers() -> None:
    model = odd()
    fields = [tensor.field for tensor in model.inputs]
    assert fields[:6] == ["class_", "a_b", "A_B_2", "tensor_1st", "self_", "np_"]
    assert fields[6:] == ["tensor_of_the_layer_tensor_of_th", "tensor"]
    assert len({field.lower() for field in fields}) == len(fields)
    assert all(field.isidentifier() and field.isascii() for field in fields)
    assert (model.identifier, model.type_name) == (
        "model_3d_odd_net_of_a_long_name_and_st",
        "Model3dOddNetOfALongNameAndSt",
    )
    assert DIGEST in model.header


def test_describe__name_with_a_suffix_exists__uses_the_next() -> None:
    names = ["a.b", "a_b_2", "a b"]
    specs = tuple(TensorSpec(name=name, dtype=Datatype.FP32, shape=()) for name in names)
    model = describe("m", DIGEST, Signature(inputs=specs, outputs=specs[:1]))
    assert [tensor.field for tensor in model.inputs] == ["a_b", "a_b_2", "a_b_3"]


def test_plain_name__no_letters__has_a_default() -> None:
    assert plain_name("--") == "tensor"
    assert plain_name("2", "model") == "model_2"


def test_elements__fixed_or_dynamic_shape__is_a_number_or_none() -> None:
    model = odd()
    assert model.outputs[0].elements == 12
    assert model.inputs[0].elements is None
