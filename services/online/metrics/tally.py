"""The sums that one worker counted since its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tally:
    """What a worker counted since its start; times are seconds, summed over requests.

    `batches` has how many batches of so many rows there were and how long they ran; `last` is
    the Unix time at which the newest one ended, 0 before the first.
    """

    answered: int
    failed: int
    parse: float
    queue: float
    infer: float
    serialize: float
    batches: Mapping[int, tuple[int, float]]
    last: float

    @property
    def stages(self) -> dict[str, float]:
        """The seconds of each stage under Triton's names."""
        return {
            "queue": self.queue,
            "compute_input": self.parse,
            "compute_infer": self.infer,
            "compute_output": self.serialize,
        }
