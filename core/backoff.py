"""How long to wait before something that failed is tried again."""

from __future__ import annotations

# Beyond so many doublings every pause is the longest, and the power would overflow.
_MAX_DOUBLINGS = 64


def pause_after(failures: int, first: float, longest: float) -> float:
    """Return the pause in seconds after so many `failures` in a row, 1 or more.

    It is `first` after one failure and doubles with each further one, up to `longest`.
    """
    return min(first * 2.0 ** min(failures - 1, _MAX_DOUBLINGS), longest)
