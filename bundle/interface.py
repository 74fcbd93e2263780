"""Find breaking changes between the interfaces of two revisions. Pure.

An interface is the signatures of all models by name. Callers send the inputs of the live signature
and read its outputs, so a candidate may accept more and return more, never less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mlctl.bundle.tensors import DYNAMIC, Signature, TensorSpec

Interface = Mapping[str, Signature]
# The endpoint without a model name; the interface of a single model leaves it out.
PREDICT = "/predict"


def to_document(interface: Interface) -> dict[str, Any]:
    """Return an interface as plain JSON values."""
    return {name: signature.model_dump(mode="json") for name, signature in interface.items()}


def from_document(document: Mapping[str, Any]) -> dict[str, Signature]:
    """Parse the form of `to_document`."""
    return {name: Signature.model_validate(value) for name, value in document.items()}


def broken(before: Interface, after: Interface) -> tuple[str, ...]:
    """Return a sentence for each change from `before` to `after` that breaks callers."""
    return tuple(_broken(before, after))


def _broken(before: Interface, after: Interface) -> Iterator[str]:
    if (PREDICT in before) != (PREDICT in after):
        before, after = _with_predict(before), _with_predict(after)
    for name, signature in before.items():
        if name not in after:
            yield f"{name!r} is missing"
            continue
        for reason in _changed(signature, after[name]):
            yield f"{name!r}: {reason}"


def _with_predict(interface: Interface) -> Interface:
    """Return the interface with the model of `/predict`, which is the only model by default."""
    if len(interface) != 1:
        return interface
    (only,) = interface.values()
    return {**interface, PREDICT: only}


def _changed(before: Signature, after: Signature) -> Iterator[str]:
    known = {spec.name for spec in before.inputs}
    yield from _side("input", before.inputs, after.inputs)
    for spec in after.inputs:
        if spec.name not in known:
            yield f"input {spec.name!r} is new, and callers do not send it"
    yield from _side("output", before.outputs, after.outputs)


def _side(side: str, before: Sequence[TensorSpec], after: Sequence[TensorSpec]) -> Iterator[str]:
    """Compare the tensors that callers use. Typed services identify them by position."""
    positions = {spec.name: position for position, spec in enumerate(after)}
    for position, was in enumerate(before):
        if was.name not in positions:
            yield f"{side} {was.name!r} is missing"
            continue
        now = after[positions[was.name]]
        wide, narrow = (now, was) if side == "input" else (was, now)
        if now.dtype is not was.dtype or not _holds(wide.shape, narrow.shape):
            yield f"{side} {was.name!r} is {_form(now)}, was {_form(was)}"
        elif positions[was.name] != position:
            now_at = positions[was.name] + 1
            yield f"{side} {was.name!r} is at position {now_at}, was at {position + 1}"


def _holds(wide: Sequence[int], narrow: Sequence[int]) -> bool:
    """Whether every tensor of the shape `narrow` also has the shape `wide`."""
    return len(wide) == len(narrow) and all(
        size in (DYNAMIC, other) for size, other in zip(wide, narrow, strict=True)
    )


def _form(spec: TensorSpec) -> str:
    return f"{spec.dtype.value} {list(spec.shape)}"
