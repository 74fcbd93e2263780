"""Print the share of lines and branches of each package: the end of `make coverage-all`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path


def table(report: Path) -> list[str]:
    """Return a line for each package and one for all, from the report of `coverage json`."""
    sums: dict[str, Counter[str]] = {}
    for file, measured in json.loads(report.read_text())["files"].items():
        for name in (Path(file).parts[0], "all"):
            sums.setdefault(name, Counter()).update(
                {key: n for key, n in measured["summary"].items() if isinstance(n, int)}
            )
    lines = ["percent     branches  lines"]
    for name, n in sorted(sums.items(), key=lambda each: (each[0] == "all", each[0])):
        branches = 100.0 * n["covered_branches"] / max(1, n["num_branches"])
        statements = 100.0 * n["covered_lines"] / max(1, n["num_statements"])
        lines.append(f"{name:<10} {branches:9.1f} {statements:6.1f}")
    return lines


if __name__ == "__main__":
    print("\n".join(table(Path(sys.argv[1]))))
