"""The messages of the V2 protocol, from its compiled description beside this file.

They are in a pool of their own, so that another copy of the protocol in the same process, such
as tritonclient's, does not clash.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_SERVICE = "inference.GRPCInferenceService"
_FILE = Path(__file__).with_name("v2.binpb")
INFER = f"/{_SERVICE}/ModelInfer"
METADATA = f"/{_SERVICE}/ModelMetadata"


@dataclass(frozen=True, slots=True)
class Messages:
    """The message classes of the calls that a client makes."""

    infer_request: type[Any]
    infer_response: type[Any]
    metadata_request: type[Any]
    metadata: type[Any]


@cache
def messages() -> Messages:
    """The classes, made once."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(_FILE.read_bytes()).file:
        pool.Add(file)
    methods = pool.FindServiceByName(_SERVICE).methods_by_name
    infer, metadata = methods["ModelInfer"], methods["ModelMetadata"]
    described = (infer.input_type, infer.output_type, metadata.input_type, metadata.output_type)
    return Messages(*map(message_factory.GetMessageClass, described))
