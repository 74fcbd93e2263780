"""What callers of one revision would miss at another, read from the signatures. Pure.

An interface is the signature of all that can be asked, by name. Callers send what the former
signature takes and read what it gives, so a candidate may take more and give more, never less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bundle.tensors import DYNAMIC, Signature, TensorSpec

Interface = Mapping[str, Signature]
# What asks no model by its name; the interface of one model leaves it out.
PREDICT = "/predict"


def to_document(interface: Interface) -> dict[str, Any]:
    """An interface as plain JSON values."""
    return {name: signature.model_dump(mode="json") for name, signature in interface.items()}


def from_document(document: Mapping[str, Any]) -> dict[str, Signature]:
    """The inverse of `to_document`."""
    return {name: Signature.model_validate(value) for name, value in document.items()}


def broken(before: Interface, after: Interface) -> tuple[str, ...]:
    """What callers of `before` would miss at `after`, a short sentence each; empty if nothing."""
    return tuple(_broken(before, after))


def _broken(before: Interface, after: Interface) -> Iterator[str]:
    if (PREDICT in before) != (PREDICT in after):
        before, after = _with_predict(before), _with_predict(after)
    for name, signature in before.items():
        if name not in after:
            yield f"{name!r} is gone"
            continue
        for reason in _changed(signature, after[name]):
            yield f"{name!r}: {reason}"


def _with_predict(interface: Interface) -> Interface:
    """The interface with what `/predict` asks: the only model, if it does not say which."""
    if len(interface) != 1:
        return interface
    (only,) = interface.values()
    return {**interface, PREDICT: only}


def _changed(before: Signature, after: Signature) -> Iterator[str]:
    known = {spec.name for spec in before.inputs}
    yield from _side("input", before.inputs, after.inputs)
    for spec in after.inputs:
        if spec.name not in known:
            yield f"input {spec.name!r} is new, and no caller sends it"
    yield from _side("output", before.outputs, after.outputs)


def _side(side: str, before: Sequence[TensorSpec], after: Sequence[TensorSpec]) -> Iterator[str]:
    """What became of the tensors that callers know. The typed services tell them by their place."""
    places = {spec.name: place for place, spec in enumerate(after)}
    for place, was in enumerate(before):
        if was.name not in places:
            yield f"{side} {was.name!r} is gone"
            continue
        now = after[places[was.name]]
        wide, narrow = (now, was) if side == "input" else (was, now)
        if now.dtype is not was.dtype or not _holds(wide.shape, narrow.shape):
            yield f"{side} {was.name!r} is {_form(now)}, was {_form(was)}"
        elif places[was.name] != place:
            yield f"{side} {was.name!r} has place {places[was.name] + 1}, had {place + 1}"


def _holds(wide: Sequence[int], narrow: Sequence[int]) -> bool:
    """Whether every tensor of the shape `narrow` also has the shape `wide`."""
    return len(wide) == len(narrow) and all(
        size in (DYNAMIC, other) for size, other in zip(wide, narrow, strict=True)
    )


def _form(spec: TensorSpec) -> str:
    return f"{spec.dtype.value} {list(spec.shape)}"
