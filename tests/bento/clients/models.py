"""Models for clients: one with every datatype and names that no language takes."""

from __future__ import annotations

from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.services.online.openapi.model import ApiModel, describe

DIGEST = "ab12" * 16


def every_datatype() -> Signature:
    """Return inputs and outputs of each datatype, with two dynamic dimensions."""
    specs = tuple(
        TensorSpec(name=f"{dtype.value}/in", dtype=dtype, shape=(DYNAMIC, 3, DYNAMIC))
        for dtype in Datatype
    )
    return Signature(inputs=specs, outputs=specs)


def odd() -> ApiModel:
    """Return a model with hard names: keywords, spaces, equal but for case, long."""
    names = ["class", "a b", "A.B", "1st", "self", "np", "tensor of the layer " * 4, "ü"]
    inputs = [
        TensorSpec(name=name.strip(), dtype=dtype, shape=(DYNAMIC, 2))
        for name, dtype in zip(names, Datatype, strict=False)
    ]
    rest = [dtype for dtype in Datatype if dtype not in {spec.dtype for spec in inputs}]
    outputs = [TensorSpec(name=f"out {dtype}", dtype=dtype, shape=(3, 4)) for dtype in rest]
    return describe(
        "3d.odd-net-of-a-long-name.and-still.longer",
        DIGEST,
        Signature(inputs=tuple(inputs), outputs=tuple(outputs)),
    )
