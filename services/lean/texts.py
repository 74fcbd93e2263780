"""Requests whose numbers are text become what they would be with binary data, many at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from services.inference import Inference
from services.lean.frames import MOST_BYTES, read_numbers
from services.lean.known import Known
from services.v2.wire import encode_raw

if TYPE_CHECKING:
    from services.lean.repeat import RepeatCycle


def read_all(cycles: Sequence[RepeatCycle], inference: Inference) -> None:
    """Put into each its tensors' bytes, or tell it what is wrong with its numbers."""
    groups: dict[Known, list[RepeatCycle]] = {}
    for cycle in cycles:
        if cycle.known in groups:
            groups[cycle.known].append(cycle)
        else:
            groups[cycle.known] = [cycle]
    for known, group in groups.items():
        # All numbers are objects for a moment.
        count = max(1, 2 * MOST_BYTES // max([len(cycle.data) for cycle in group]))
        for start in range(0, len(group), count):
            _read(known, group[start : start + count], inference)


def _read(known: Known, group: Sequence[RepeatCycle], inference: Inference) -> None:
    """Read all together, or in halves until those that are wrong stand alone."""
    blocks = _join(known, group)
    if blocks is None:
        if len(group) == 1:
            _read_alone(known, group[0], inference)
            return
        middle = len(group) // 2
        for half in (group[:middle], group[middle:]):
            _read(known, half, inference)
        return
    sizes = [len(block) // len(group) for block in blocks]
    if len(blocks) == 1:
        ((block,), (size,)) = blocks, sizes
        for index, cycle in enumerate(group):
            cycle.data = block[index * size : (index + 1) * size]
        return
    for index, cycle in enumerate(group):
        cycle.data = b"".join(
            [
                block[index * size : (index + 1) * size]
                for block, size in zip(blocks, sizes, strict=True)
            ]
        )


def _join(known: Known, group: Sequence[RepeatCycle]) -> list[bytes] | None:
    """For each input the bytes of all; None if anything is not as it should be."""
    blocks = []
    for index, declared in enumerate(known.form.declared.values()):
        array = read_numbers(declared, [cycle.texts[index] for cycle in group])
        if array is None:
            return None
        blocks.append(encode_raw(declared.spec.dtype, array))
    return blocks


def _read_alone(known: Known, cycle: RepeatCycle, inference: Inference) -> None:
    """As a request is read of which nothing is known: it says what is wrong."""
    try:
        inputs = inference.decode(known.head, cycle.data[-cycle.held :]).inputs
    except Exception as error:  # noqa: BLE001 - it is logged and answered
        cycle.set_exception(error)
        return
    cycle.data = b"".join(
        [encode_raw(each.spec.dtype, inputs[name]) for name, each in known.form.declared.items()]
    )
