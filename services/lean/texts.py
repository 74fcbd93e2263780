"""Requests whose numbers are text become what they would be with binary data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from services.inference import Inference
from services.lean.numbers import read_numbers
from services.v2.wire import encode_raw

if TYPE_CHECKING:
    from services.lean.repeat import RepeatCycle


def read_all(cycles: Sequence[RepeatCycle], inference: Inference) -> None:
    """Put into each its tensors' bytes, or tell it what is wrong with its numbers."""
    for cycle in cycles:
        data = _read(cycle)
        if data is None:
            _read_slowly(cycle, inference)
        else:
            cycle.data = data


def _read(cycle: RepeatCycle) -> bytes | None:
    """The bytes of all tensors; None if anything is not as it should be."""
    packs, places, data = cycle.known.packs, cycle.places, cycle.data
    if len(packs) == 1:
        return read_numbers(packs[0], data, places[0])
    tensors = []
    for pack, place in zip(packs, places, strict=True):
        tensor = read_numbers(pack, data, place)
        if tensor is None:
            return None
        tensors.append(tensor)
    return b"".join(tensors)


def _read_slowly(cycle: RepeatCycle, inference: Inference) -> None:
    """As a request is read of which nothing is known: it says what is wrong."""
    known = cycle.known
    try:
        inputs = inference.decode(known.head, cycle.data[-cycle.held :]).inputs
    except Exception as error:  # noqa: BLE001 - it is logged and answered
        cycle.set_exception(error)
        return
    cycle.data = b"".join(
        [encode_raw(each.spec.dtype, inputs[name]) for name, each in known.form.declared.items()]
    )
