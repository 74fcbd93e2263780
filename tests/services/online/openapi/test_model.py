from bundle.tensors import Datatype, Signature, TensorSpec
from services.online.openapi.model import describe, plain_name
from tests.bento.clients.models import DIGEST, odd


def test_names_become_distinct_identifiers() -> None:
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


def test_a_second_name_does_not_take_one_that_is_there() -> None:
    names = ["a.b", "a_b_2", "a b"]
    specs = tuple(TensorSpec(name=name, dtype=Datatype.FP32, shape=()) for name in names)
    model = describe("m", DIGEST, Signature(inputs=specs, outputs=specs[:1]))
    assert [tensor.field for tensor in model.inputs] == ["a_b", "a_b_2", "a_b_3"]


def test_what_has_no_letters_is_still_named() -> None:
    assert plain_name("--") == "tensor"
    assert plain_name("2", "model") == "model_2"


def test_a_tensor_knows_its_number_of_elements() -> None:
    model = odd()
    assert model.outputs[0].elements == 12
    assert model.inputs[0].elements is None
