"""What one observation of the shadowed requests found. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShadowWindow:
    """The pairs of answers that were found since the tick before.

    Attributes:
        requests: those with both answers. `disagreed` is the sum over them of the share
            of their rows that disagree, so that one large request is one trial.
        rows: compared, and how many of these `differed`.
        non_finite: rows with NaN or infinity from the candidate where live's answer was finite.
        distance: greatest distance of two answers, relative to the size of live's.
        lost: rows of the candidate whose live answer never came.
        psi: population stability index of the outputs, over all pairs so far; None with too
            few of them. `psi_rows` is on how many.
        seconds: length of the tick.
    """

    requests: int = 0
    disagreed: float = 0.0
    rows: int = 0
    differed: int = 0
    non_finite: int = 0
    distance: float = 0.0
    lost: int = 0
    psi: float | None = None
    psi_rows: int = 0
    seconds: float = 0.5
