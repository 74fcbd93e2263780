"""One run of the model for a key that many ask for at once.

Those who come while it runs wait for its row, if they ask with the same inputs or with none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from services.hybrid.base import Row

Inputs = Mapping[str, np.ndarray]
Landing = asyncio.Future[Row | None]


@dataclass(frozen=True, slots=True)
class _Flight:
    inputs: Inputs
    index: int
    landing: Landing


class Flights:
    """The keys whose rows the model computes now. Belongs to one event loop."""

    def __init__(self) -> None:
        self._open: dict[str, _Flight] = {}

    def find(self, key: str, inputs: Inputs, index: int) -> Landing | None:
        """What will have the row for `key`, or None in it if its run fails; None if none runs.

        Await it shielded: others wait for it as well.
        """
        flight = self._open.get(key)
        if flight is None or not (not inputs or _same(flight, inputs, index)):
            return None
        return flight.landing

    @contextmanager
    def run(
        self, keys: Sequence[str], inputs: Inputs, indices: Sequence[int]
    ) -> Iterator[list[Row]]:
        """Others may wait for the keys at `indices` while the body runs; it fills the list."""
        loop = asyncio.get_running_loop()
        ours: dict[str, _Flight] = {}
        for index in indices:
            if keys[index] not in self._open:
                flight = _Flight(inputs, index, loop.create_future())
                ours[keys[index]] = self._open[keys[index]] = flight
        rows: list[Row] = []
        try:
            yield rows
        finally:
            found = {row.key: row for row in rows}
            for key, flight in ours.items():
                del self._open[key]
                flight.landing.set_result(found.get(key))


def _same(flight: _Flight, inputs: Inputs, index: int) -> bool:
    """Whether a row of `inputs` is the one that the flight's run has."""
    return flight.inputs.keys() == inputs.keys() and all(
        np.array_equal(flight.inputs[name][flight.index], array[index])
        for name, array in inputs.items()
    )
