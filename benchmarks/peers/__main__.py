"""Install each peer into a virtual environment: `python -m benchmarks.peers install DIR`."""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

RUNTIME = "onnxruntime==1.31.1"
REQUIREMENTS: Mapping[str, tuple[str, ...]] = {
    # It contains Triton's binary and Python backend; its tools need the older numpy.
    "pytriton": ("nvidia-pytriton==0.7.0", "numpy<2", RUNTIME),
    "bentoml": ("bentoml==1.4.39", RUNTIME),
}


def install(folder: Path) -> None:
    """Create the environments that `folder` lacks."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, requirements in REQUIREMENTS.items():
        python = folder / name / "bin" / "python"
        if not python.exists():
            print(f"{name}: {', '.join(requirements)}", flush=True)
            venv.create(folder / name, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True)


def main() -> int:
    """Parse and install."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("command", choices=["install"])
    parser.add_argument("folder", type=Path)
    install(parser.parse_args().folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
