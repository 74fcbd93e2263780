"""How soon a rollout goes back, what Envoy costs, how much traffic its gates need.

`python -m benchmarks.rollout [RUNS]`: real daemons, Envoy and small servers, with nothing else
running; then simulations with RUNS seeds a row (1,000; `benchmarks.gates`, `benchmarks.effects`).
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks import effects, gates, proxies, reaction


def main() -> None:
    """Print the tables."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    console = Console()
    with tempfile.TemporaryDirectory(prefix="mlctl-bench-") as folder:
        os.environ["MLCTL_HOME"] = folder
        console.print(reaction.table(Path(folder)))
        console.print(proxies.table(Path(folder)))
    console.print(gates.table(runs))
    console.print(effects.table())


if __name__ == "__main__":
    main()
