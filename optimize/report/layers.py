"""Which layers a quantization costs most, as bars, with those that were left in float marked."""

from __future__ import annotations

import math
from collections.abc import Sequence

from optimize.recipes.base import LayerCost
from optimize.report import axes
from optimize.report.markup import Markup, tag
from optimize.report.numbers import significant

SHOWN = 40

_WIDTH = 860.0
_ROW = 20.0
_TOP = 8.0
_NAME_CHARACTERS = 46
_BAR_LEFT, _BAR_RIGHT = 338.0, 690.0


def layer_bars(recipe: str, layers: Sequence[LayerCost]) -> Markup:
    """One bar for each of the first SHOWN layers, which are the costliest."""
    shown = layers[:SHOWN]
    longest = max((each.distance for each in layers if math.isfinite(each.distance)), default=0.0)
    return axes.svg(
        _WIDTH,
        _TOP + _ROW * len(shown) + 6,
        f"What each layer costs, {recipe}",
        "Relative L2 of the worst output when only that layer is quantized, costliest first.",
        *(_bar(layer, number, longest or 1.0) for number, layer in enumerate(shown)),
    )


def rest(layers: Sequence[LayerCost]) -> str:
    """What is said of the layers that are not shown; empty if all are."""
    hidden = layers[SHOWN:]
    if not hidden:
        return ""
    kept = sum(layer.kept_in_float for layer in hidden)
    more = f" ({kept} of them kept in float)" if kept else ""
    return f"… and {len(hidden)} more, each at most {significant(hidden[0].distance)}{more}."


def _bar(layer: LayerCost, number: int, longest: float) -> Markup:
    top = _TOP + number * _ROW
    kind = "kept" if layer.kept_in_float else "quantized"
    length = min(layer.distance / longest, 1.0) * (_BAR_RIGHT - _BAR_LEFT)
    if not math.isfinite(length):
        length = _BAR_RIGHT - _BAR_LEFT
    became = ", kept in float" if layer.kept_in_float else ""
    end = significant(layer.distance) + became
    return tag(
        "g",
        tag("title", f"{layer.layer} ({layer.operator}): {end}"),
        tag(
            "text",
            _shortened(layer.layer),
            x=_BAR_LEFT - 10,
            y=top + 14,
            text_anchor="end",
            class_="layer",
        ),
        tag(
            "rect",
            x=_BAR_LEFT,
            y=top + 4,
            width=max(length, 1.0),
            height=_ROW - 7,
            rx=2,
            class_=f"cost {kind}",
        ),
        tag("text", end, x=_BAR_LEFT + max(length, 1.0) + 8, y=top + 14, class_=f"note {kind}"),
    )


def _shortened(name: str) -> str:
    """The ends of a long name: where layers differ is at its end, what they are in at its start."""
    if len(name) <= _NAME_CHARACTERS:
        return name
    end = _NAME_CHARACTERS * 2 // 3
    return f"{name[: _NAME_CHARACTERS - end - 1]}…{name[-end:]}"
