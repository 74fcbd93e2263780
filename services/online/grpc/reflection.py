"""Server reflection: clients such as grpcurl ask which services, methods and messages there are.

Version v1 and the older v1alpha differ in the name of their package alone, so both have one
handler: their messages are the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from mlctl.services.online.grpc.health import HEALTH_SERVICE
from mlctl.services.online.grpc.http2.call import MethodHandler
from mlctl.services.online.grpc.typed.service import TypedService
from mlctl.services.protocol.messages import SERVICE, fill_pool

_ALPHA = reflection.SERVICE_NAME
_NAMES = (_ALPHA, "grpc.reflection.v1.ServerReflection")


class _Pool(DescriptorPool):
    """A pool that finds the file of a method, too, as clients that describe a method ask for it."""

    def FindFileContainingSymbol(self, symbol: str) -> Any:  # noqa: N802 - the pool's own name
        try:
            return super().FindFileContainingSymbol(symbol)
        except KeyError:
            method: Any = self.FindMethodByName(symbol)  # KeyError if it is none, either
            return method.containing_service.file


def reflection_handlers(typed: Sequence[TypedService]) -> Mapping[str, MethodHandler]:
    """Return the handlers of reflection, by path, on the server's services and those of `typed`."""
    own = [service.name for service in typed]
    pool = _Pool()
    files = [*(service.file for service in typed), _v1_file()]
    fill_pool(pool, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR, files=files)
    bare: Any = reflection  # its classes have no types
    servicer = bare.aio.ReflectionServicer((SERVICE, *own, HEALTH_SERVICE, *_NAMES), pool=pool)
    method = MethodHandler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
        reflection_pb2.ServerReflectionRequest.FromString,
        streams=True,
    )
    return {f"/{name}/ServerReflectionInfo": method for name in _NAMES}


def _v1_file() -> Any:
    """Return the file that defines v1: that of v1alpha in another package."""
    file: Any = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    old, new = f".{file.package}.", ".grpc.reflection.v1."
    file.package, file.name = "grpc.reflection.v1", "grpc/reflection/v1/reflection.proto"
    for field in [field for message in file.message_type for field in message.field]:
        if field.type_name:
            field.type_name = field.type_name.replace(old, new)
    for method in file.service[0].method:
        method.input_type = method.input_type.replace(old, new)
        method.output_type = method.output_type.replace(old, new)
    return file
