"""The batching curve: rows a second at batches of 1 to 64, and 64 rows in one pass against 64.

`python -m benchmarks.gpu --provider cuda` (or tensorrt, cpu). With cuda there is a second line:
what servers do with MLCTL_CUDA_GRAPHS=1, one CUDA graph for each batch size. No GPU has run this
yet; with `--provider cpu` the curve itself is measured on any machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.workloads import MAX_ROWS, NAMES, Workload, make_workload
from services.runtime.cuda_graphs import open_cuda_graphs
from services.runtime.session import open_session

BATCHES = (1, 2, 4, 8, 16, 32, MAX_ROWS)
PROVIDERS = ("cpu", "cuda", "tensorrt")
_RUNS = 50
_WARM_RUNS = 5
_SECONDS = 2.0
Run = Callable[[np.ndarray], np.ndarray]
Curve = Mapping[int, float]


def measure_curve(run: Run, row: np.ndarray) -> Curve:
    """The median seconds of a run, by its rows; copies to and from the device are in it."""
    found = {}
    for batch in BATCHES:
        rows = np.ascontiguousarray(np.repeat(row, batch, axis=0))
        for _ in range(_WARM_RUNS):
            run(rows)
        seconds: list[float] = []
        while len(seconds) < _RUNS and sum(seconds) < _SECONDS:
            start = time.perf_counter()
            run(rows)
            seconds.append(time.perf_counter() - start)
        found[batch] = median(seconds)
    return found


def gain(curve: Curve) -> float:
    """How many times as fast the largest batch is as its rows one by one."""
    most = max(curve)
    return most * curve[1] / curve[most]


def draw(curves: Mapping[str, Curve], title: str) -> str:
    """The rows a second of each curve over the batch size, as SVG; both axes are logarithmic."""
    width, height, edge = 640, 400, 56
    rates = {name: [(b, b / s) for b, s in curve.items()] for name, curve in curves.items()}
    every = [rate for points in rates.values() for _, rate in points]
    low, high = np.log10(min(every)) - 0.1, np.log10(max(every)) + 0.1

    def place(batch: int, rate: float) -> str:
        x = edge + (width - 2 * edge) * np.log2(batch) / np.log2(BATCHES[-1])
        y = height - edge - (height - 2 * edge) * (np.log10(rate) - low) / (high - low)
        return f"{x:.1f},{y:.1f}"

    parts = [f'<text x="{edge}" y="24">{title}</text>']
    for index, (name, points) in enumerate(rates.items()):
        line = " ".join(place(*point) for point in points)
        color = ("#1f5fa8", "#b8501c", "#2f7d32", "#6a3d9a")[index % 4]
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        label = f"{name}: {gain(curves[name]):.1f}x at {BATCHES[-1]}"
        parts.append(f'<text x="{edge}" y="{44 + 18 * index}" fill="{color}">{label}</text>')
        for batch, rate in points:
            x, y = place(batch, rate).split(",")
            parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{color}"/>')
            parts.append(f'<text x="{x}" y="{float(y) + 16:.1f}" font-size="10">{rate:,.0f}</text>')
    for batch in BATCHES:
        x = place(batch, 10**low).split(",")[0]
        parts.append(f'<text x="{x}" y="{height - 24}" text-anchor="middle">{batch}</text>')
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="13">\n{body}\n</svg>\n'
    )


def runs_of(workload: Workload, provider: str) -> dict[str, Run]:
    """The ways to run `workload` on `provider`."""
    batching = workload.bundle.manifest.batching.model_copy(update={"buckets": BATCHES})
    session = open_session(workload.model, provider, batching=batching)
    runs: dict[str, Run] = {provider: lambda rows: session.run({"x": rows})["y"]}
    if provider == "cuda":
        signature = workload.bundle.manifest.model_signature
        graphed = open_cuda_graphs(workload.model, signature, batching)
        runs["cuda, one graph for each size"] = lambda rows: graphed.run({"x": rows})["y"]
    return runs


def measure_gpu(
    provider: str = "cuda", nets: Sequence[str] = NAMES, svg: Path | None = None
) -> None:
    """Print each net's curves and, with the folder `svg`, draw them.

    PROVIDER_UNAVAILABLE where the provider cannot be had; SystemExit if an answer is wrong.
    """
    for net in nets:
        with tempfile.TemporaryDirectory(prefix="mlctl-curve-") as scratch:
            workload = make_workload(net, Path(scratch) / "model")
            curves = {}
            for name, run in runs_of(workload, provider).items():
                if not np.allclose(run(workload.row), workload.answer, atol=1e-2):
                    raise SystemExit(f"{net}, {name}: the answer is not the CPU's")
                curves[name] = measure_curve(run, workload.row)
        _show(net, curves)
        if svg is not None:
            svg.mkdir(parents=True, exist_ok=True)
            title = f"{net}: rows a second by rows in a batch"
            (svg / f"{net}-{provider}.svg").write_text(draw(curves, title))


def _show(net: str, curves: Mapping[str, Curve]) -> None:
    table = Table(title=f"{net}: milliseconds, and rows a second", box=None, padding=(0, 2, 0, 0))
    for name in ("rows", *curves):
        table.add_column(name, justify="right")
    for batch in BATCHES:
        cells = (f"{c[batch] * 1e3:.3f} ms {batch / c[batch]:,.0f}/s" for c in curves.values())
        table.add_row(str(batch), *cells)
    table.add_row("one pass", *(f"{gain(curve):.1f}x" for curve in curves.values()))
    Console(width=120).print(table)


def main() -> None:
    """Parse and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--provider", choices=PROVIDERS, default="cuda")
    parser.add_argument("--nets", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--svg", type=Path, help="a folder for the drawings")
    options = parser.parse_args()
    measure_gpu(options.provider, options.nets, options.svg)


if __name__ == "__main__":
    main()
