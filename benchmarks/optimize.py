"""The variant that mlctl chooses for each net beside what ONNX Runtime's quantizers make of it.

Every net goes through the real chain (MLflow, export, recipes, gates). The library quantizes the
same graph with the same calibration rows at its defaults, and its files run in plain sessions, as
its users open them; those that pass the same gate are chosen from by the same rule. All take turns
on the same rows, and the CPU time of each run is compared with that of the same round, so that a
slow moment of the machine affects all of them.
"""

from __future__ import annotations

import copy
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.nets import NETS, Net
from benchmarks.result import ResultTable, argument_parser, measuring
from mlctl.bundle.manifest import MODEL_NAME
from mlctl.core.home import HOME_VARIABLE
from mlctl.core.quiet import first_line, quiet
from mlctl.examples.digits.data import load_split
from mlctl.examples.digits.train import RECIPES, fit
from mlctl.optimize.data import Tensors
from mlctl.optimize.inputs.prepare import OptimizeOptions, prepare
from mlctl.optimize.metrics.latency import BatchLatency
from mlctl.optimize.metrics.parity import compare
from mlctl.optimize.metrics.scores import compare_metric
from mlctl.optimize.pipeline import optimize
from mlctl.optimize.proofs.baseline import run_rows
from mlctl.optimize.proofs.source_graph import ExportedModel, export_source
from mlctl.optimize.variants.choice import choose
from mlctl.optimize.variants.goals import Goals, accuracy_faults
from mlctl.optimize.variants.variant import Measured, Variant
from mlctl.registry.mlflow_catalog import MlflowCatalog
from mlctl.registry.tracking import configure_tracking
from mlctl.services.model.scorer import split_rows
from mlctl.services.model.session import OnnxSession, Session, open_session

BATCHES = (1, 8, 32)
FOREST = "forest"
MIN_ROUNDS, MAX_ROUNDS = 9, 200
ROUND_SECONDS = 4.0
WARM_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model file with its name in the table; `plain` opens it without mlctl's settings."""

    name: str
    path: Path
    plain: bool = False

    @property
    def megabytes(self) -> float:
        return self.path.stat().st_size / 1e6

    def open(self) -> Session:
        """Return its session, which runs on one thread."""
        return open_plain(self.path) if self.plain else open_session(self.path)


def open_plain(path: Path) -> Session:
    """Open ONNX Runtime's own session with its defaults, on one thread."""
    runtime: Any = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    providers = ["CPUExecutionProvider"]
    return OnnxSession(runtime.InferenceSession(str(path), options, providers=providers), "cpu")


class _Reader:
    """Calibration rows, eight at a time, as the library reads them."""

    def __init__(self, rows: Tensors) -> None:
        self._parts = split_rows(rows, 8)

    def get_next(self) -> Tensors | None:
        return next(self._parts, None)


def library_candidates(graph: Path, rows: Tensors, folder: Path) -> Iterator[Candidate]:
    """Yield what `onnxruntime.quantization` makes with its defaults; what fails is left out."""
    import onnx

    library: Any = import_module("onnxruntime.quantization")
    model = onnx.load(str(graph))
    del model.graph.value_info[:]  # with them its dynamic form fails after a Gemm

    def dynamic(path: Path, per_channel: bool) -> None:
        library.quantize_dynamic(copy.deepcopy(model), path, per_channel=per_channel)

    def static(path: Path, per_channel: bool) -> None:
        library.quantize_static(
            copy.deepcopy(model),
            path,
            _Reader(rows),
            per_channel=per_channel,
            activation_type=library.QuantType.QUInt8,
            weight_type=library.QuantType.QInt8,
        )

    for per_channel in (False, True):
        for write in (dynamic, static):
            form = "per channel" if per_channel else "per tensor"
            path = folder / f"{write.__name__} {form}.onnx"
            try:
                with quiet():
                    write(path, per_channel)
            except Exception as error:  # noqa: BLE001 - the library's errors have no common class
                print(f"{path.stem}: {first_line(error)}", file=sys.stderr)
                continue
            yield Candidate(path.stem, path, plain=True)


def judged(candidate: Candidate, exported: ExportedModel, goals: Goals) -> Measured | None:
    """Return the candidate's numbers on the rows that judge mlctl's variants; None if it fails.

    It fails if it does not run or misses a gate.
    """
    baseline = exported.baseline
    try:
        outputs = run_rows(candidate.open().run, baseline.rows, BATCHES[-1])
        parity, score = compare(baseline.outputs, outputs), None
    except Exception as error:  # noqa: BLE001 - runtimes have no common exception
        print(f"{candidate.name}: {first_line(error)}", file=sys.stderr)
        return None
    if baseline.metric is not None and baseline.rows.labels is not None:
        score = compare_metric(baseline.metric, baseline.outputs, outputs, baseline.rows.labels)
    if next(accuracy_faults(parity, score, goals), None) is not None:
        return None
    size = candidate.path.stat().st_size
    return Measured(baseline.rows.count, exported.opset, size, parity, score)


def speeds(candidates: Sequence[Candidate], rows: Tensors) -> dict[str, list[np.ndarray]]:
    """Return the CPU seconds [rounds] of each candidate at each of BATCHES.

    In each round every candidate runs once, in rotating order; a short run follows an untimed
    one, because the other candidates have filled the caches.
    """
    sessions = {each.name: each.open() for each in candidates}
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


def choice(
    measured: Mapping[str, Measured], seconds: Mapping[str, Sequence[np.ndarray]], goals: Goals
) -> str:
    """Return which candidate mlctl's own rule chooses; the baseline is named fp32."""
    variants = [
        Variant(
            name,
            "fp32",
            replace(
                each,
                latency=tuple(
                    BatchLatency(batch, tuple(1000.0 * taken))
                    for batch, taken in zip(BATCHES, seconds[name], strict=True)
                ),
            ),
        )
        for name, each in measured.items()
    ]
    return next(item.variant.recipe for item in choose(variants, goals) if item.chosen)


def run_model(
    name: str, rows: Mapping[str, np.ndarray], home: Path, goals: Goals, table: ResultTable
) -> None:
    """Optimize the registered model `name` and compare what is chosen with the library's."""
    data = home / f"{name}.npz"
    with data.open("wb") as file:
        np.savez(file, allow_pickle=False, **rows)
    catalog = MlflowCatalog()
    optimized = optimize(name, data, catalog=catalog, goals=goals)
    exported = export_source(prepare(catalog.resolve(name), data, OptimizeOptions()))
    variant = optimized.chosen.variant
    assert variant.model is not None
    own = Candidate(variant.recipe, variant.model / MODEL_NAME)
    plain = Candidate(f"{own.name} in a plain session", own.path, plain=True)
    fp32 = Candidate("fp32", exported.graph)
    inputs = {key: array for key, array in rows.items() if key != "labels"}
    with tempfile.TemporaryDirectory(dir=home) as folder:
        others = library_candidates(exported.graph, exported.calibration.inputs, Path(folder))
        found = {each: judged(each, exported, goals) for each in others}
        passing = {each: measured for each, measured in found.items() if measured is not None}
        baseline = judged(fp32, exported, goals)
        assert baseline is not None
        timed = list(dict.fromkeys([fp32, own, plain, *passing]))
        seconds = speeds(timed, inputs)
        by_name = {"fp32": baseline, **{each.name: item for each, item in passing.items()}}
        best = choice(by_name, seconds, goals)
        medians = {
            each: [float(np.median(taken)) for taken in seconds[each]]
            for each in (*by_name, own.name)
        }
        fastest = [
            min((taken[at], each) for each, taken in medians.items())[1]
            for at in range(len(BATCHES))
        ]
        table.add(
            name,
            f"{fp32.megabytes:.2f}",
            own.name,
            f"{own.megabytes:.2f}",
            _ratios(seconds["fp32"], seconds[own.name]),
            best,
            _ratios(seconds["fp32"], seconds[best]),
            ", ".join(each.name for each in found if each not in passing) or "none",
            _ratios([seconds[each][at] for at, each in enumerate(fastest)], seconds[own.name]),
            _ratios(seconds[plain.name], seconds[own.name]),
        )


def _ratios(numerator: Sequence[np.ndarray], denominator: Sequence[np.ndarray]) -> str:
    return " / ".join(f"{each:.2f}" for each in paired(numerator, denominator))


def register_net(net: Net) -> dict[str, np.ndarray]:
    """Make and register the net, and return its rows."""
    torch.manual_seed(0)
    module, rows = net.make(), dict(net.rows(net.count))
    register(module, net, {name: array[:2] for name, array in rows.items() if name != "labels"})
    return rows


def register_forest() -> dict[str, np.ndarray]:
    """Train and register 200 boosted trees on 20 columns, and return labelled rows."""
    import mlflow
    import xgboost
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    random = np.random.default_rng(6)
    x = random.normal(size=(4000, 20)).astype(np.float32)
    labels = (np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + random.normal(0, 0.3, 4000) > 0).astype(int)
    forest = xgboost.XGBClassifier(n_estimators=200, max_depth=6, n_jobs=1)
    forest.fit(x[:3000], labels[:3000])
    inputs = Schema([TensorSpec(np.dtype(np.float32), (-1, 20), "x")])
    outputs = Schema([TensorSpec(np.dtype(np.int64), (-1,))])
    configure_tracking()
    with quiet(), mlflow.start_run():
        mlflow.xgboost.log_model(
            forest,
            name="model",
            signature=ModelSignature(inputs, outputs),
            registered_model_name=FOREST,
            pip_requirements=["xgboost"],
            model_format="json",
        )
    return {"x": x[3000:], "labels": labels[3000:].astype(np.int64)}


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
            "The variant of mlctl beside those of onnxruntime.quantization that pass the same "
            "gate, in plain sessions; speed over fp32 at batch 1 / 8 / 32",
            *("net", "fp32 MB", "chosen", "MB", "speed"),
            *("library's choice", "speed ", "library's that miss the gate"),
            *("speed over the fastest that passes", "over a plain session"),
        )
        models: dict[str, Callable[[], dict[str, np.ndarray]]] = {
            net.name: partial(register_net, net) for net in (digits(), *NETS)
        }
        models[FOREST] = register_forest
        for model in options.nets or models:
            run_model(model, models[model](), Path(name), Goals(), table)


if __name__ == "__main__":
    main()
