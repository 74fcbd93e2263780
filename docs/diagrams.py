"""Write the documentation's diagrams: `python -m docs.diagrams`, or `make pictures`.

`gates.svg` and `false-rollbacks.svg` show seeded simulations with the product's gates
(`benchmarks.effects`). The pictures follow the reader's light or dark colour scheme.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from benchmarks import effects
from benchmarks.effects import EFFECTS, RULES, SPEC, TICK_SECONDS, TICKS, Effect
from benchmarks.gate_simulation import Version, draw
from benchmarks.page import bar_chart, svg
from benchmarks.result import BarChart
from mlctl.rollout.domain.machine import gates
from mlctl.rollout.domain.machine.evidence import GateEvidence, fold
from mlctl.rollout.domain.statistics import e_values
from mlctl.rollout.domain.traffic.counts import Window

RUNS = 500


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """Return one line of text."""
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(words)}</text>'


CHAIN = (
    ("registry version", "models:/digits/3"),
    ("bundle, evidence", "digest 3f2a..."),
    ("optimized version", "digits-optimized/2"),
    ("Bento", "digits:3f2a..."),
    ("traffic", "behind Envoy"),
)
STEPS = ("optimize", "publish", "build", "up, promote")


def chain_svg() -> str:
    """Return the picture of the chain from the registry to traffic and back."""
    step, width, parts = 200, 132, []
    for index, (name, example) in enumerate(CHAIN):
        x = 8 + index * step
        middle = x + width / 2
        parts += [
            f'<rect class="box" x="{x}" y="30" width="{width}" height="50" rx="5"/>',
            text(middle, 51, name, "middle"),
            text(middle, 69, example, "middle"),
        ]
        if index < len(STEPS):
            parts += [
                f'<path class="line" d="M{x + width + 2} 55 H{x + step - 4} l-7 -4 m7 4 l-7 4"/>',
                text(x + (width + step) / 2, 20, STEPS[index], "middle"),
            ]
    source, optimized, traffic = (8 + index * step + width / 2 for index in (0, 2, 4))
    for end in (source, optimized):
        parts.append(f'<path class="line" d="M{traffic} 82 V112 H{end} V86 l-4 7 m4 -7 l4 7"/>')
    parts.append(
        text((optimized + traffic) / 2, 130, "@champion after a promotion or rollback", "middle")
    )
    return svg(8 + 4 * step + width + 8, 144, "The chain", parts)


@dataclass(frozen=True, slots=True)
class DrawnBatch:
    """Requests by name with their arrival, and when their batch runs; in pixels from the left."""

    requests: dict[str, int]
    start: int
    end: int


BATCHES = (
    DrawnBatch({"A": 130}, 130, 240),
    DrawnBatch({"B": 150, "C": 180, "D": 225}, 240, 380),
    DrawnBatch({"E": 275, "F": 330}, 380, 500),
    DrawnBatch({"G": 580}, 580, 690),
)


def batching_svg() -> str:
    """Return the picture of requests that become batches."""
    parts = [text(8, 34, "arrive"), text(8, 90, "wait"), text(8, 154, "model runs")]
    for batch in BATCHES:
        for row, (name, arrival) in enumerate(batch.requests.items()):
            y = 66 + 18 * row
            parts += [
                text(arrival, 34, name, "middle"),
                f'<path class="line" d="M{arrival} 40 V{y} H{batch.start} V128"/>',
            ]
        width = batch.end - batch.start
        parts += [
            f'<rect class="box" x="{batch.start}" y="130" width="{width - 4}" height="38" rx="4"/>',
            text(batch.start + width / 2, 154, " ".join(batch.requests), "middle"),
        ]
    notes = ("idle: at once", "arrived while A ran", "while B C D ran", "idle again")
    parts += [text(b.start, 190, note) for b, note in zip(BATCHES, notes, strict=True)]
    return svg(720, 210, "How requests become batches", parts)


CURVES = (("a", EFFECTS[0]), ("b", EFFECTS[2]), ("c", EFFECTS[1]))
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 560, 40, 250
_LOWEST, _HIGHEST = 1e-2, 1e5


def evidence_curve(effect: Effect) -> tuple[list[float], bool]:
    """Return the mean e-value of harm after each tick, and whether the last one rolled back."""
    rng, evidence, values = np.random.default_rng(effects.SEED), GateEvidence(), []
    for _ in range(TICKS):
        counts = (
            draw(Version(slow=0.002, errors=effect.errors), effects.CANDIDATE, rng),
            draw(Version(slow=0.01, errors=effect.live_errors), effects.LIVE, rng),
        )
        evidence = fold(evidence, Window(*counts, seconds=TICK_SECONDS), SPEC)
        values.append(math.exp(e_values.log_mean(tuple(evidence.log_values(SPEC).values()))))
        if gates.harm(evidence, SPEC) is not None:
            return values, True
    return values, False


def gates_svg() -> str:
    """Return the picture of the evidence against three candidates."""
    seconds = TICKS * TICK_SECONDS

    def height(value: float) -> float:
        share = math.log(min(max(value, _LOWEST), _HIGHEST) / _LOWEST) / math.log(
            _HIGHEST / _LOWEST
        )
        return _BOTTOM - share * (_BOTTOM - _TOP)

    threshold = 1.0 / SPEC.alpha
    level = height(threshold)
    parts = [
        text(8, 20, "evidence that the candidate is worse (e-value)"),
        f'<path class="line" d="M{_LEFT} {_TOP} V{_BOTTOM} H{_RIGHT}"/>',
        f'<path class="line" stroke-dasharray="6 4" d="M{_LEFT} {level:.1f} H{_RIGHT}"/>',
        text(_RIGHT + 8, level + 4, f"threshold 1/alpha = {threshold:.0f}"),
        text(
            (_LEFT + _RIGHT) / 2, _BOTTOM + 36, "seconds; 40 of 400 requests/s go to it", "middle"
        ),
    ]
    parts += [
        text(_LEFT - 8, height(value) + 4, f"{value:g}", "end") for value in (1e-2, 1.0, 1e2, 1e4)
    ]
    for second in range(0, int(seconds) + 1, 15):
        x = _LEFT + second / seconds * (_RIGHT - _LEFT)
        parts.append(text(x, _BOTTOM + 18, str(second), "middle"))
    for colour, effect in CURVES:
        values, rolled_back = evidence_curve(effect)
        points = [
            (_LEFT + at * TICK_SECONDS / seconds * (_RIGHT - _LEFT), height(value))
            for at, value in enumerate([1.0, *values])
        ]
        path = " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        x, y = points[-1]
        parts.append(f'<path class="{colour} curve" d="M{path}"/>')
        if rolled_back:
            parts += [
                f'<circle class="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>',
                text(x + 9, y - 2, f"{effect.name}: rolled back"),
            ]
        else:
            parts.append(text(x + 8, y + 4, effect.name))
    return svg(760, 300, "Evidence of three simulated candidates", parts)


def false_rollbacks_svg() -> str:
    """Return the chart of identical versions that are rolled back."""
    equal = EFFECTS[0]
    shares = {"mlctl's gates": effects.gates_ticks(equal, RUNS)}
    shares |= {name: effects.rule_ticks(equal, rule, RUNS) for name, rule in RULES.items()}
    values = {name: 100.0 * float((ticks > 0).mean()) for name, ticks in shares.items()}
    title = f"Identical versions rolled back within {TICKS * TICK_SECONDS:.0f} s, of {RUNS}"
    return bar_chart(BarChart(title=title, unit="%", values=values))


def main() -> None:
    """Write the diagrams to docs/images/."""
    folder = Path(__file__).parent / "images"
    (folder / "chain.svg").write_text(chain_svg())
    (folder / "batching.svg").write_text(batching_svg())
    (folder / "gates.svg").write_text(gates_svg())
    (folder / "false-rollbacks.svg").write_text(false_rollbacks_svg())


if __name__ == "__main__":
    main()
