"""Numbers as text for people."""

from __future__ import annotations

import math

_KILO = 1000.0
_MINUS = "\N{MINUS SIGN}"
_TIMES = "\N{MULTIPLICATION SIGN}"


def milliseconds(value: float) -> str:
    """Return three significant digits and the unit."""
    return f"{significant(value)} ms"


def size(count: float) -> str:
    """Return bytes in the decimal unit that fits: `27.4 kB`, `1.34 GB`."""
    for unit in ("B", "kB", "MB"):
        if count < _KILO:
            return f"{count:.0f} B" if unit == "B" else f"{significant(count)} {unit}"
        count /= _KILO
    return f"{significant(count)} GB"


def significant(value: float, digits: int = 3) -> str:
    """Return `value` with that many significant digits, an exponent only if it is very small."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) < 1e-3:
        return f"{value:.1e}"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{max(0, decimals)}f}"


def score(value: float) -> str:
    """Return a score or cosine: four decimals, or significant digits beyond 1."""
    return f"{value:.4f}" if abs(value) <= 1 else significant(value, 5)


def signed(value: float) -> str:
    """Return a difference of scores with its sign, a real minus, and no sign for zero."""
    text = score(abs(value))
    if float(text) == 0:
        return text
    return f"+{text}" if value > 0 else f"{_MINUS}{text}"


def times(ratio: float) -> str:
    """Return a ratio with a multiplication sign: two significant digits, whole beyond 100."""
    return f"{ratio:.0f}{_TIMES}" if ratio >= 100 else f"{significant(ratio, 2)}{_TIMES}"


def rate(value: float) -> str:
    """Return rows per second with three significant digits: more would not be repeatable."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else significant(value)
