"""How numbers are written for people."""

from __future__ import annotations

import math

_KILO = 1000.0
_MINUS = "\N{MINUS SIGN}"
_TIMES = "\N{MULTIPLICATION SIGN}"


def milliseconds(value: float) -> str:
    """Three significant digits."""
    return f"{significant(value)} ms"


def size(count: float) -> str:
    """Bytes in the decimal unit that fits: `27.4 kB`, `1.34 GB`."""
    for unit in ("B", "kB", "MB"):
        if count < _KILO:
            return f"{count:.0f} B" if unit == "B" else f"{significant(count)} {unit}"
        count /= _KILO
    return f"{significant(count)} GB"


def significant(value: float, digits: int = 3) -> str:
    """`value` with that many significant digits and no exponent, unless it is very small."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) < 1e-3:
        return f"{value:.1e}"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{max(0, decimals)}f}"


def share(value: float) -> str:
    """A score, a cosine or a share of rows."""
    return f"{value:.4f}"


def signed(value: float) -> str:
    """A difference of scores with its sign, a real minus, and none for zero."""
    written = f"{abs(value):.4f}"
    if float(written) == 0:
        return written
    return f"+{written}" if value > 0 else f"{_MINUS}{written}"


def times(ratio: float) -> str:
    """A ratio with the sign of multiplication: 2.7, or 310 where no digit after it counts."""
    return f"{ratio:.0f}{_TIMES}" if ratio >= 100 else f"{significant(ratio, 2)}{_TIMES}"


def rate(value: float) -> str:
    """Rows per second: no digit is written that a second measurement would not repeat."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else significant(value)
