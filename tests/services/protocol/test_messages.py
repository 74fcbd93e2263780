"""Our protocol description against the compiled file we ship and against another client's."""

from pathlib import Path
from typing import Any

import pytest
from grpc_tools import protoc  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2

from mlctl.services.protocol.messages import DESCRIPTORS, SERVICE, methods

TRITON: Any = service_pb2


def fields(descriptor: Any) -> dict[str, tuple[int, int, bool]]:
    """Number, type and repetition by field name, nested messages included."""
    found = {}
    for field in descriptor.fields:
        found[field.name] = (field.number, field.type, field.is_repeated)
        if field.message_type is not None:
            for name, value in fields(field.message_type).items():
                found[f"{field.name}.{name}"] = value
    return found


def test_descriptors__compiled_again__are_the_same(tmp_path: Path) -> None:
    folder = DESCRIPTORS.parent
    compiled = tmp_path / "v2.binpb"
    arguments = ["protoc", f"-I{folder}", f"--descriptor_set_out={compiled}", "v2.proto"]
    assert protoc.main(arguments) == 0
    assert compiled.read_bytes() == DESCRIPTORS.read_bytes()


@pytest.mark.parametrize("name", methods())
def test_messages__each_method__have_tritonclients_fields(name: str) -> None:
    theirs = TRITON.DESCRIPTOR.services_by_name[SERVICE.split(".")[1]].methods_by_name[name]
    for our_type, their_type in (
        (methods()[name].request, theirs.input_type),
        (methods()[name].response, theirs.output_type),
    ):
        ours = fields(our_type.DESCRIPTOR)
        assert ours == {key: value for key, value in fields(their_type).items() if key in ours}
        assert our_type.DESCRIPTOR.full_name == their_type.full_name


def test_messages__beside_tritonclients__are_compatible() -> None:
    ours = methods()["ModelInfer"].request(model_name="m", raw_input_contents=[b"ab"])
    theirs = TRITON.ModelInferRequest.FromString(ours.SerializeToString())
    assert theirs.model_name == "m"
    assert type(theirs) is not type(ours)
