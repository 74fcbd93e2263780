"""The V2 protobuf messages, from the compiled descriptors beside v2.proto.

They have their own descriptor pool, because another library in the process, such as tritonclient,
may define the same names. Compile again after a change: `python -m grpc_tools.protoc
-I services/protocol --descriptor_set_out=services/protocol/v2.binpb services/protocol/v2.proto`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "inference.GRPCInferenceService"
DESCRIPTORS = Path(__file__).with_name("v2.binpb")


@dataclass(frozen=True, slots=True)
class Method:
    """A method: its name and message classes; a stream has any number of messages."""

    name: str
    request: type[Any]
    response: type[Any]


def fill_pool(
    pool: descriptor_pool.DescriptorPool, *others: Any, files: Iterable[Any] = ()
) -> None:
    """Add the protocol, copies of the file descriptors `others`, and `files` to `pool`.

    `files` are FileDescriptorProto messages.
    """
    own = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes())
    for file in (*own.file, *files):
        pool.AddSerializedFile(file.SerializeToString())
    for other in others:
        pool.AddSerializedFile(other.serialized_pb)


@cache
def methods() -> dict[str, Method]:
    """Return the service's methods by name."""
    pool = descriptor_pool.DescriptorPool()
    fill_pool(pool)
    service = pool.FindServiceByName(SERVICE)
    return {
        method.name: Method(
            method.name,
            message_factory.GetMessageClass(method.input_type),
            message_factory.GetMessageClass(method.output_type),
        )
        for method in service.methods
    }
