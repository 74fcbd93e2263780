"""The .proto of a model's typed gRPC service, for protoc in any language."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from string import Template

from bundle.tensors import DYNAMIC, Datatype
from services.online.grpc.typed.layout import DIGEST, FIRST, Field, lay_out
from services.online.openapi.model import ApiModel

_FILE = Template(
    """\
// $header
syntax = "proto3";

package $package;

// Asks the model $name, on the gRPC port of its server. Values are in row-major order.
service Predictor {
  // The error is in google.rpc.Status, as with the V2 protocol on the same port.
  rpc Predict(Request) returns (Response);
}

message Request {
  reserved 1 to $last;

$request
}

message Response {
  reserved 2 to $last;

  // Which model has answered; this file was written for the one above.
  string $digest = 1;
$response
}
"""
)
_RAW: Mapping[Datatype, str] = {
    Datatype.UINT8: "one byte for each value",
    Datatype.FP16: "two bytes for each value, the lower one first, as IEEE 754 has them",
    Datatype.BF16: "two bytes for each value, the lower one first: the upper half of a float",
}


class ProtoGenerator:
    """Writes one file, which is the same as what the server's reflection tells."""

    def files(self, model: ApiModel) -> Mapping[str, str | bytes]:
        layout = lay_out(model)
        text = _FILE.substitute(
            header=model.header,
            name=model.name,
            package=layout.package,
            last=FIRST - 1,
            digest=DIGEST,
            request=_fields(layout.request, asked=True),
            response=_fields(layout.response, asked=False),
        )
        return {layout.path: text}


def _fields(fields: Iterable[Field], *, asked: bool) -> str:
    return "\n".join(line for field in fields for line in _lines(field, asked=asked))


def _lines(field: Field, *, asked: bool) -> Iterable[str]:
    tensor = field.tensor
    raw = _RAW.get(tensor.dtype)
    how = f": {raw}" if raw else ""
    yield f'  // "{tensor.name}": {tensor.dtype.value}, shape {list(tensor.shape)}{how}.'
    kind = "bytes" if field.scalar is None else f"repeated {field.scalar}"
    yield f"  {kind} {field.name} = {field.number};"
    if field.shape:
        if asked and tensor.shape.count(DYNAMIC) == 1 and 0 not in tensor.shape:
            yield "  // Its shape; not needed, as the number of values tells it."
        else:
            yield "  // Its shape."
        yield f"  repeated int64 {field.shape} = {field.number + 1};"
