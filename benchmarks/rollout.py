"""How soon a rollout goes back, what Envoy costs, how much traffic its gates need.

`python -m benchmarks.rollout`: real daemons, Envoy and small servers, with nothing else
running; then seeded simulations (`benchmarks.effects`). Some five minutes.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks import effects, proxies, reaction


def main() -> None:
    """Print the three tables."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="mlctl-bench-") as folder:
        os.environ["MLCTL_HOME"] = folder
        console.print(reaction.table(Path(folder)))
        console.print(proxies.table(Path(folder)))
    console.print(effects.table())


if __name__ == "__main__":
    main()
