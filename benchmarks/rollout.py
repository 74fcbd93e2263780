"""How soon a rollout goes back, what Envoy costs, and how often the gates are right.

Real daemons, Envoy and small servers first (`benchmarks.reaction`, `benchmarks.proxies`), then
simulations (`benchmarks.gates`, `benchmarks.effects`).
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from benchmarks import effects, gates, proxies, reaction
from benchmarks.result import argument_parser, measuring
from bundle.home import HOME_VARIABLE

_PARTS = ("reaction", "proxies", "gates", "effects")


def main() -> None:
    """Run the chosen parts."""
    parser = argument_parser("rollout", __doc__)
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=list(_PARTS))
    parser.add_argument("--runs", type=int, default=1000, help="simulated rollouts per case")
    options = parser.parse_args()
    with (
        measuring("rollout", options.json) as result,
        tempfile.TemporaryDirectory(prefix="mlctl-bench-") as name,
    ):
        os.environ[HOME_VARIABLE] = name
        for part in options.parts:
            if part == "reaction":
                reaction.measure(Path(name), result)
            elif part == "proxies":
                proxies.measure(Path(name), result)
            elif part == "gates":
                gates.measure(options.runs, result)
            else:
                effects.measure(options.runs, result)


if __name__ == "__main__":
    main()
