"""What optimizing gains: each chosen variant beside torch and ONNX Runtime, on one thread.

Every net goes through the real chain (MLflow, export, recipes, gates). Its contenders
then take turns on the same rows, so that a slow moment of the machine hits all of them.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks.nets import NETS, Net
from bundle.entries import read_record
from bundle.home import HOME_VARIABLE, state_dir
from bundle.manifest import MODEL_NAME
from examples.digits.data import load_split
from examples.digits.train import RECIPES, fit
from optimize.choice import Judged
from optimize.goals import Goals, Prefer
from optimize.pipeline import OptimizeResult, optimize
from optimize.prepare import Options
from optimize.recipes.base import Target
from optimize.recipes.discovery import select
from registry.mlflow_catalog import MlflowCatalog
from services.runtime.session import open_session
from tests.support.sources import save_rows
from tests.support.torch_models import log_torch

BATCHES = (1, 8, 32)
ROUNDS = 7
ROUND_SECONDS = 1.0

Run = Callable[[Mapping[str, np.ndarray]], object]


@dataclass(frozen=True, slots=True)
class Line:
    """Median milliseconds of one contender on a batch."""

    net: str
    contender: str
    batch: int
    milliseconds: float


def eager(module: nn.Module) -> Run:
    """The torch module as it is; also for one that was compiled."""

    def run(inputs: Mapping[str, np.ndarray]) -> object:
        with torch.no_grad():
            return module(*(torch.from_numpy(array) for array in inputs.values()))

    return run


def contenders(module: nn.Module, judged: tuple[Judged, ...]) -> dict[str, Run]:
    """What takes turns: torch, torch.compile, and every variant that could be built."""
    found: dict[str, Run] = {
        "torch eager": eager(module),
        "torch.compile": eager(torch.compile(module, dynamic=False)),  # type: ignore[arg-type]
    }
    for item in judged:
        if item.variant.model is not None:
            mark = " (chosen)" if item.chosen else "" if item.passed else " (refused)"
            session = open_session(item.variant.model / MODEL_NAME)
            found[f"ORT {item.variant.recipe}{mark}"] = session.run
    return found


def take_turns(runs: Mapping[str, Run], inputs: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Median milliseconds of each, over rounds in which each runs for a share of a second."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run(inputs)
        run(inputs)
    for _ in range(ROUNDS):
        for name, run in runs.items():
            end = time.perf_counter() + ROUND_SECONDS / len(runs)
            while True:
                start = time.perf_counter()
                run(inputs)
                now = time.perf_counter()
                taken[name].append((now - start) * 1000)
                if now >= end:
                    break
    return {name: statistics.median(values) for name, values in taken.items()}


def measure(net: Net, module: nn.Module, result: OptimizeResult) -> Iterator[Line]:
    """Every contender at every batch size."""
    rows = net.rows(max(BATCHES))
    runs = contenders(module, result.judged)
    for batch in BATCHES:
        inputs = {name: array[:batch] for name, array in rows.items() if name != "labels"}
        for contender, value in take_turns(runs, inputs).items():
            yield Line(net.name, contender, batch, value)


def run_net(net: Net, home: Path, goals: Goals) -> Iterator[Line]:
    """Register the net, optimize it, and measure what came out."""
    torch.manual_seed(0)
    module = net.make()
    rows = net.rows(net.count)
    inputs = {name: array for name, array in rows.items() if name != "labels"}
    example = [array[:2] for array in inputs.values()]
    log_torch(module, net.name, *example, input_names=tuple(inputs), output_names=(net.output,))
    data = save_rows(home / f"{net.name}.npz", rows)
    catalog = MlflowCatalog()
    result = optimize(net.name, data, catalog=catalog, goals=goals)
    for item in result.judged:
        print(f"{net.name} {item.variant.recipe}: {item.reason}")
    yield from measure(net, module, result)


def search_seconds(net: Net, home: Path) -> float:
    """Seconds of int8-trt on the net with a gate that needs the sensitivity search."""
    options = Options(target=Target.TENSORRT)
    goals = Goals(prefer=Prefer.SIZE, min_centred_cosine=0.9999)
    optimize(
        net.name,
        home / f"{net.name}.npz",
        catalog=MlflowCatalog(),
        goals=goals,
        options=options,
        recipes=select(["fp32", "int8-trt"], Target.TENSORRT),
    )
    records = map(read_record, state_dir("cache", "optimize").iterdir())
    return max(each.seconds for each in records if each and each.key.get("recipe") == "int8-trt")


def digits() -> Net:
    """The trained net of the demo on its labelled rows, again and again where more are asked."""
    train, held_out = load_split()
    recipe = RECIPES["wide"]

    def make() -> nn.Module:
        net = recipe.build()
        fit(net, train, recipe.epochs)
        return net

    def rows(count: int) -> dict[str, np.ndarray]:
        images, labels = held_out.images[:count], held_out.labels[:count]
        return {"x": images, "labels": labels}

    return Net("digits", make, rows, len(held_out.labels), "logits")


def main() -> None:
    """Optimize every net, measure, and print one table."""
    torch.set_num_threads(1)
    goals = Goals(prefer=Prefer.THROUGHPUT)
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="mlctl-bench-") as folder:
        os.environ[HOME_VARIABLE] = folder
        for net in (digits(), *NETS):
            lines += run_net(net, Path(folder), goals)
            show([line for line in lines if line.net == net.name])
        encoder = NETS[-1]
        print(f"{encoder.name}: int8-trt with its search {search_seconds(encoder, Path(folder))} s")


def show(lines: list[Line]) -> None:
    """Milliseconds, and how many times as fast as torch eager and as fp32 ONNX Runtime."""
    table = Table(title=f"{lines[0].net}: median milliseconds on one thread")
    table.add_column("Contender")
    for batch in BATCHES:
        for name in (f"ms@{batch}", "x eager", "x fp32"):
            table.add_column(name, justify="right", no_wrap=True)
    value = {(line.contender, line.batch): line.milliseconds for line in lines}
    plain = next(line.contender for line in lines if line.contender.startswith("ORT fp32"))
    for contender in dict.fromkeys(line.contender for line in lines):
        cells = [contender]
        for batch in BATCHES:
            own = value[contender, batch]
            cells += [
                f"{own:.3g}",
                f"{value['torch eager', batch] / own:.2f}",
                f"{value[plain, batch] / own:.2f}",
            ]
        table.add_row(*cells)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
