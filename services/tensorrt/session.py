"""A session on TensorRT itself: the whole graph as one engine, or an error."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import Batching
from services.runtime.faults import RunError
from services.runtime.graph import read_graph
from services.tensorrt.build import build_engine
from services.tensorrt.builder import make_logger
from services.tensorrt.cache import ENGINE_NAME, TIMING_NAME, fetch_engine, timing_directory
from services.tensorrt.cuda import CudaError, Driver, Gpu, Graph
from services.tensorrt.key import engine_key, model_sha256
from services.tensorrt.options import EngineOptions
from services.tensorrt.probe import require_device
from services.tensorrt.process import OnProgress
from services.tensorrt.profile import make_profile
from services.tensorrt.runner import Runner, Tensors

PROVIDER = "tensorrt-raw"

logger = logging.getLogger("mlctl.graphs")


def prepare_engine(
    model: Path,
    batching: Batching | None,
    options: EngineOptions,
    on_progress: OnProgress | None = None,
) -> Path:
    """The engine file for `model` on this machine, from the cache or built now.

    PROVIDER_UNAVAILABLE without TensorRT and a GPU; the build's failures are `fetch_engine`'s.
    """
    device = require_device(PROVIDER, "trt")
    graph = read_graph(model)
    profile = make_profile(graph.inputs, batching, options.lengths)
    key = engine_key(model_sha256(graph.files), device, profile, options.flags, "tensorrt")
    timing = timing_directory(device) / TIMING_NAME

    def build(directory: Path) -> None:
        engine = directory / ENGINE_NAME
        build_engine(model, engine, profile, options, timing_cache=timing, on_progress=on_progress)

    return fetch_engine(model, key, build).root / ENGINE_NAME


def open_engine(
    model: Path, batching: Batching | None, options: EngineOptions, *, graphs: bool = False
) -> EngineSession:
    """A session on the engine of `model`, which is built first if it has to be.

    With `graphs` batches of the sizes of `batching` are captured and replayed.
    """
    path = prepare_engine(model, batching, options)
    trt: Any = importlib.import_module("tensorrt")
    gpu = Gpu(Driver())
    log = make_logger(trt)
    runtime = trt.Runtime(log)
    # Such an engine brings the code of its own lean runtime along.
    runtime.engine_host_code_allowed = options.flags.version_compatible
    engine = runtime.deserialize_cuda_engine(path.read_bytes())
    if engine is None:
        raise MlctlError(
            ErrorCode.PROVIDER_UNAVAILABLE, f"TensorRT cannot load its engine: {log.last}"
        )
    captured = batching.buckets if graphs and batching is not None else ()
    return EngineSession(trt, engine, gpu, captured, owners=(runtime, log))


class EngineSession:
    """Runs an engine of TensorRT on one stream; batches of `captured` rows as one graph each.

    A graph is tied to the shapes and the addresses of the context that it was captured from,
    so each has a context and memory of its own. TensorRT settles what a shape needs in the
    first run with it, so that one is not captured. When a graph cannot be captured or launched
    there are none from then on. `graphs` are those there are, by rows; `owners` are what must
    outlive the engine.
    """

    def __init__(
        self,
        trt: Any,
        engine: Any,
        gpu: Gpu,
        captured: Sequence[int] = (),
        owners: tuple[Any, ...] = (),
    ) -> None:
        self.provider = PROVIDER
        self._engine, self._gpu, self._owners = engine, gpu, owners
        self._tensors = Tensors.of(trt, engine)
        self._plain = Runner(engine, self._tensors, gpu)
        self._captured = frozenset(captured)
        self.graphs: dict[int, tuple[Runner, Graph]] = {}

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All outputs; INVALID_INPUT for a shape outside of the engine's profile."""
        self._gpu.attach()
        rows = self._rows(inputs)
        if rows not in self._captured:
            return self._plain.run(inputs)
        try:
            return self._replayed(rows, inputs)
        except (RunError, CudaError) as error:
            logger.warning("from now on without CUDA graphs: %s", str(error))
        except MlctlError as error:
            if error.code is not ErrorCode.PROVIDER_UNAVAILABLE:
                raise
            logger.warning("from now on without CUDA graphs: %s", error.message)
        self._captured = frozenset()
        self.graphs.clear()
        return self._plain.run(inputs)

    def _replayed(self, rows: int, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        known = self.graphs.get(rows)
        if known is None:
            runner = Runner(self._engine, self._tensors, self._gpu)
            answers = runner.run(inputs)
            self.graphs[rows] = runner, runner.capture()
            return answers
        runner, graph = known
        # Only one length of sequences is captured, that of the warm-up.
        return runner.replay(graph, inputs) if runner.fits(inputs) else self._plain.run(inputs)

    def _rows(self, inputs: Mapping[str, np.ndarray]) -> int:
        shapes = {inputs[name].shape[:1] for name in self._tensors.inputs if name in inputs}
        return next(iter(shapes))[0] if len(shapes) == 1 and () not in shapes else 0
