"""How soon a rollout goes back, what promotions, kills and Envoy cost, how often gates are right.

Real daemons, Envoy and small servers first (`benchmarks.reaction`, `kills`, `proxies`), real Bentos
(`benchmarks.handover`), then simulations (`benchmarks.gates`, `benchmarks.effects`).
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from benchmarks import effects, gates, handover, kills, proxies, reaction
from benchmarks.result import argument_parser, measuring
from mlctl.core.home import HOME_VARIABLE

_PARTS = ("reaction", "promotions", "handover", "kills", "proxies", "gates", "effects")


def main() -> None:
    """Run the chosen parts."""
    parser = argument_parser("rollout", __doc__)
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=list(_PARTS))
    parser.add_argument("--seeds", type=int, default=1000, help="simulated rollouts per case")
    parser.add_argument("--kills", type=int, default=100, help="kills of random processes")
    parser.add_argument("--promotions", type=int, default=20, help="undisturbed promotions")
    parser.add_argument("--seed", type=int, default=1, help="which processes die, and when")
    options = parser.parse_args()
    with (
        measuring("rollout", options.json) as result,
        tempfile.TemporaryDirectory(prefix="mlctl-bench-") as name,
    ):
        os.environ[HOME_VARIABLE] = name
        for part in options.parts:
            if part == "reaction":
                reaction.measure(Path(name), result)
            elif part == "promotions":
                kills.measure_promotions(options.promotions, result)
            elif part == "handover":
                handover.measure(options.promotions, Path(name), result)
            elif part == "kills":
                kills.measure(options.kills, options.seed, result)
            elif part == "proxies":
                proxies.measure(Path(name), result)
            elif part == "gates":
                gates.measure(options.seeds, result)
            else:
                effects.measure(options.seeds, result)


if __name__ == "__main__":
    main()
