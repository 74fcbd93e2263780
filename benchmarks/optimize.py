"""The best int8 variant of each net beside the best one of ONNX Runtime's quantizer, on one thread.

Every net goes through the real chain (MLflow, export, recipes, gates). The library quantizes the
same graph with the same calibration rows, and its candidates pass the same gate. All take turns
on the same rows, and the CPU time of each run is compared with that of the same round, so that a
slow moment of the machine affects all of them.
"""

from __future__ import annotations

import copy
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.nets import NETS, Net
from benchmarks.result import ResultTable, argument_parser, measuring
from bundle.home import HOME_VARIABLE
from bundle.manifest import MODEL_NAME
from examples.digits.data import load_split
from examples.digits.train import RECIPES, fit
from optimize.choice import choose
from optimize.data import Tensors
from optimize.goals import Goals, accuracy_faults
from optimize.judge import run_rows
from optimize.metrics.latency import TIE
from optimize.metrics.parity import compare
from optimize.metrics.scores import compare_metric
from optimize.pipeline import optimize
from optimize.prepare import OptimizeOptions, prepare
from optimize.source_graph import ExportedModel, export_source
from registry.mlflow_catalog import MlflowCatalog
from registry.quiet import quiet
from registry.tracking import configure_tracking
from services.runtime.scorer import split_rows
from services.runtime.session import open_session

BATCHES = (1, 8, 32)
MIN_ROUNDS, MAX_ROUNDS = 9, 200
ROUND_SECONDS = 4.0
WARM_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model file with its name in the table."""

    name: str
    path: Path

    @property
    def megabytes(self) -> float:
        return self.path.stat().st_size / 1e6


class _Reader:
    """Calibration rows, eight at a time, as the library reads them."""

    def __init__(self, rows: Tensors) -> None:
        self._parts = split_rows(rows, 8)

    def get_next(self) -> Tensors | None:
        return next(self._parts, None)


def library_candidates(graph: Path, rows: Tensors, folder: Path) -> Iterator[Candidate]:
    """Yield what `onnxruntime.quantization` makes with its default operators."""
    import onnx

    library: Any = import_module("onnxruntime.quantization")
    model = onnx.load(str(graph))
    del model.graph.value_info[:]  # with them its dynamic form fails after a Gemm
    for per_channel in (False, True):
        form = "per channel" if per_channel else "per tensor"
        dynamic, static = folder / f"dynamic {form}.onnx", folder / f"static {form}.onnx"
        with quiet():
            library.quantize_dynamic(copy.deepcopy(model), dynamic, per_channel=per_channel)
            library.quantize_static(
                copy.deepcopy(model),
                static,
                _Reader(rows),
                per_channel=per_channel,
                activation_type=library.QuantType.QUInt8,
                weight_type=library.QuantType.QInt8,
            )
        yield from (Candidate(path.stem, path) for path in (dynamic, static))


def passes(candidate: Candidate, exported: ExportedModel, goals: Goals) -> bool:
    """Return whether the candidate meets the gates on the rows that judge mlctl's variants."""
    baseline = exported.baseline
    outputs = run_rows(open_session(candidate.path).run, baseline.rows, BATCHES[-1])
    parity, score = compare(baseline.outputs, outputs), None
    if baseline.metric is not None and baseline.rows.labels is not None:
        score = compare_metric(baseline.metric, baseline.outputs, outputs, baseline.rows.labels)
    return next(accuracy_faults(parity, score, goals), None) is None


def speeds(candidates: Sequence[Candidate], rows: Tensors) -> dict[str, list[np.ndarray]]:
    """Return the CPU seconds [rounds] of each candidate at each of BATCHES.

    In each round every candidate runs once, in rotating order; a short run follows an untimed
    one, because the other candidates have filled the caches.
    """
    sessions = {each.name: open_session(each.path) for each in candidates}
    found: dict[str, list[np.ndarray]] = {name: [] for name in sessions}
    for batch in BATCHES:
        inputs = {name: np.resize(array, (batch, *array.shape[1:])) for name, array in rows.items()}
        taken: dict[str, list[float]] = {name: [] for name in sessions}
        begin, number = time.monotonic(), 0
        while number < MIN_ROUNDS or (
            number < MAX_ROUNDS and time.monotonic() - begin < ROUND_SECONDS
        ):
            names = list(sessions)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                if not taken[name] or taken[name][-1] < WARM_SECONDS:
                    sessions[name].run(inputs)
                start = time.process_time()
                sessions[name].run(inputs)
                taken[name].append(time.process_time() - start)
            number += 1
        for name, seconds in taken.items():
            found[name].append(np.array(seconds))
    return found


def paired(numerator: Sequence[np.ndarray], denominator: Sequence[np.ndarray]) -> list[float]:
    """Return the median ratio of the rounds at each batch size."""
    return [float(np.median(a / b)) for a, b in zip(numerator, denominator, strict=True)]


def smallest_of_fastest(
    candidates: Sequence[Candidate], gain: Mapping[str, Sequence[float]]
) -> Candidate | None:
    """Return the candidate that mlctl's own rule takes: by the latency of a single row, then size.

    Another rule, such as the speed over all batch sizes, compares different kinds of variants.
    """
    fastest = max((gain[each.name][0] for each in candidates), default=0.0)
    tied = [each for each in candidates if gain[each.name][0] * (1 + TIE) >= fastest]
    return min(tied, key=lambda each: each.megabytes, default=None)


def run_net(net: Net, home: Path, goals: Goals, table: ResultTable) -> None:
    """Register and optimize the net; compare its best int8 variant with the library's."""
    torch.manual_seed(0)
    module = net.make()
    rows = net.rows(net.count)
    register(module, net, {name: array[:2] for name, array in rows.items() if name != "labels"})
    data = home / f"{net.name}.npz"
    with data.open("wb") as file:
        np.savez(file, allow_pickle=False, **rows)
    catalog = MlflowCatalog()
    optimized = optimize(net.name, data, catalog=catalog, goals=goals)
    exported = export_source(prepare(catalog.resolve(net.name), data, OptimizeOptions()))
    int8 = [item.variant for item in optimized.judged if item.variant.precision == "int8"]
    chosen = next((item.variant for item in choose(int8, goals) if item.chosen), None)
    fp32 = Candidate("fp32", exported.graph)
    inputs = {name: array for name, array in rows.items() if name != "labels"}
    with tempfile.TemporaryDirectory(dir=home) as folder:
        others = [
            each
            for each in library_candidates(
                exported.graph, exported.calibration.inputs, Path(folder)
            )
            if passes(each, exported, goals)
        ]
        own = []
        if chosen is not None and chosen.model is not None:
            own = [Candidate(chosen.recipe, chosen.model / MODEL_NAME)]
        seconds = speeds([fp32, *own, *others], inputs)
        gain = {name: paired(seconds[fp32.name], each) for name, each in seconds.items()}
        best = smallest_of_fastest(others, gain)
        table.add(
            net.name,
            f"{fp32.megabytes:.2f}",
            optimized.chosen.variant.recipe,
            *(_cells(own[0], gain) if own else ("none", "-", "-")),
            *(_cells(best, gain) if best else ("none", "-", "-")),
            _ratio(own[0], best, seconds) if own and best else "-",
            f"{own[0].megabytes / best.megabytes:.2f}" if own and best else "-",
        )


def _cells(candidate: Candidate, gain: Mapping[str, Sequence[float]]) -> tuple[str, str, str]:
    speed = " / ".join(f"{each:.2f}" for each in gain[candidate.name])
    return candidate.name, f"{candidate.megabytes:.2f}", speed


def _ratio(own: Candidate, best: Candidate, seconds: Mapping[str, Sequence[np.ndarray]]) -> str:
    return " / ".join(f"{each:.2f}" for each in paired(seconds[best.name], seconds[own.name]))


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
    parser = argument_parser("optimize", __doc__)
    parser.add_argument("--nets", nargs="+", metavar="NAME", help="default: all")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with (
        measuring("optimize", options.json) as result,
        tempfile.TemporaryDirectory(prefix="mlctl-bench-") as name,
    ):
        os.environ[HOME_VARIABLE] = name
        table = result.table(
            "int8 of mlctl beside the best candidate of onnxruntime.quantization that passes the "
            "same gate; speed over fp32 at batch 1 / 8 / 32",
            *("net", "fp32 MB", "chosen"),
            *("int8", "MB", "speed"),
            *("library", "MB ", "speed "),
            *("speed, int8 over library", "size, int8 over library"),
        )
        for net in (digits(), *NETS):
            if options.nets is None or net.name in options.nets:
                run_net(net, Path(name), Goals(), table)


if __name__ == "__main__":
    main()
