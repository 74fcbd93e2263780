"""How fast each variant is beside torch and ONNX Runtime on one thread.

Every net goes through the real chain (MLflow, export, recipes, gates). Its engines then take
turns on the same rows, so that a slow moment of the machine affects all of them.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.nets import NETS, Net
from benchmarks.result import BenchmarkResult, argument_parser, measuring
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
from registry.quiet import quiet
from registry.tracking import configure_tracking
from services.runtime.session import open_session

BATCHES = (1, 8, 32)
ROUNDS = 7
ROUND_SECONDS = 1.0

Run = Callable[[Mapping[str, np.ndarray]], object]


def eager(module: nn.Module) -> Run:
    """Return a call of the torch module, eager or compiled."""

    def run(inputs: Mapping[str, np.ndarray]) -> object:
        with torch.no_grad():
            return module(*(torch.from_numpy(array) for array in inputs.values()))

    return run


def engines(module: nn.Module, judged: tuple[Judged, ...]) -> dict[str, Run]:
    """Return torch, torch.compile, and every variant that could be built."""
    found: dict[str, Run] = {
        "torch eager": eager(module),
        "torch.compile": eager(torch.compile(module, dynamic=False)),  # type: ignore[arg-type]
    }
    for item in judged:
        if item.variant.model is not None:
            mark = " (chosen)" if item.chosen else "" if item.passed else " (rejected)"
            session = open_session(item.variant.model / MODEL_NAME)
            found[f"ORT {item.variant.recipe}{mark}"] = session.run
    return found


def take_turns(runs: Mapping[str, Run], inputs: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the median milliseconds of each; in a round each runs for a share of a second."""
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


def report(net: Net, module: nn.Module, optimized: OptimizeResult, result: BenchmarkResult) -> None:
    """Measure every engine at every batch size; add a table and a chart."""
    rows = net.rows(max(BATCHES))
    runs = engines(module, optimized.judged)
    medians = {
        batch: take_turns(runs, {k: v[:batch] for k, v in rows.items() if k != "labels"})
        for batch in BATCHES
    }
    pairs = [(f"batch {batch}, ms", "x torch eager", "x ORT fp32") for batch in BATCHES]
    columns = [column for each in pairs for column in each]
    table = result.table(f"{net.name}: median on one thread", "engine", *columns)
    fp32 = next(name for name in runs if name.startswith("ORT fp32"))
    for name in runs:
        cells: list[object] = []
        for batch in BATCHES:
            own, others = (
                medians[batch][name],
                (medians[batch][each] for each in ("torch eager", fp32)),
            )
            cells += [own, *(f"{other / own:.2f}" for other in others)]
        table.add(name, *cells)
    largest = max(BATCHES)
    rates = {name: 1000 * largest / medians[largest][name] for name in runs}
    result.chart(f"{net.name}, batch {largest}", "rows per second", rates)


def run_net(net: Net, home: Path, goals: Goals, result: BenchmarkResult) -> None:
    """Register the net, optimize it, and measure the variants."""
    torch.manual_seed(0)
    module = net.make()
    rows = net.rows(net.count)
    register(module, net, {name: array[:2] for name, array in rows.items() if name != "labels"})
    data = home / f"{net.name}.npz"
    with data.open("wb") as file:
        np.savez(file, allow_pickle=False, **rows)
    optimized = optimize(net.name, data, catalog=MlflowCatalog(), goals=goals)
    verdicts = result.table(f"{net.name}: verdicts", "recipe", "verdict")
    for item in optimized.judged:
        verdicts.add(item.variant.recipe, item.reason)
    report(net, module, optimized, result)


def register(module: nn.Module, net: Net, example: Mapping[str, np.ndarray]) -> None:
    """Log and register `module` in MLflow with its signature, as a user does."""
    import mlflow
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    with torch.no_grad():
        output = module(*(torch.from_numpy(array) for array in example.values())).numpy()
    inputs, outputs = (
        Schema([TensorSpec(each.dtype, (-1, *each.shape[1:]), name) for name, each in arrays])
        for arrays in (example.items(), [(net.output, output)])
    )
    arrays = tuple(example.values())
    configure_tracking()
    with quiet(), mlflow.start_run():
        mlflow.pytorch.log_model(
            module.eval(),
            name="model",
            signature=ModelSignature(inputs, outputs),
            input_example=arrays[0] if len(arrays) == 1 else arrays,
            registered_model_name=net.name,
            pip_requirements=["torch"],
            serialization_format="pt2",
        )


def search_seconds(net: Net, home: Path) -> float:
    """Return the seconds of int8-trt with a gate that needs the sensitivity search."""
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
    """Return the demo's trained net with its labelled rows."""
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
    """Optimize and measure every net."""
    options = argument_parser("optimize", __doc__).parse_args()
    torch.set_num_threads(1)
    goals = Goals(prefer=Prefer.THROUGHPUT)
    with (
        measuring("optimize", options.json) as result,
        tempfile.TemporaryDirectory(prefix="mlctl-bench-") as name,
    ):
        os.environ[HOME_VARIABLE] = name
        for net in (digits(), *NETS):
            run_net(net, Path(name), goals, result)
        encoder = NETS[-1]
        search = result.table("int8-trt with its search for sensitive layers", "net", "seconds")
        search.add(encoder.name, search_seconds(encoder, Path(name)))


if __name__ == "__main__":
    main()
