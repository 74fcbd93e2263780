"""Online batches on CUDA from memory that stays where it is, each size as one captured graph.

A captured graph is launched as a whole, which takes a light model a fraction of what launching
its kernels one by one does; but it reads and writes the addresses it was captured with. So each
batch size has device memory and pinned memory of its own. ONNX Runtime keeps what it captured
for the thread that captured it: every run is made by one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import Batching
from bundle.tensors import Signature
from services.runtime.faults import RunError
from services.runtime.session import OnnxSession, Session, graph_options, open_session
from services.runtime.staging import Staging, Tensor, can_stage
from services.tensorrt.cuda import CudaError, Driver, Gpu

_PROVIDER = "cuda"
logger = logging.getLogger("mlctl.graphs")


class _Graph:
    """One graph of a session: what is bound is captured by the first run, replayed by others."""

    def __init__(self, session: OnnxSession, number: int) -> None:
        self._session = session
        self._options = graph_options(number)

    def binding(self) -> Any:
        return self._session.binding()

    def run_bound(self, binding: Any) -> None:
        self._session.run_bound(binding, self._options)


class GraphedSession:
    """A session that replays batches of `buckets` rows; others are run as they come.

    When a graph cannot be captured or replayed, `reopen` gives the session for that batch and
    all that follow. `gpu` copies from and to the `device` of `inner`, which captures graphs.
    """

    def __init__(
        self,
        inner: OnnxSession,
        signature: Signature,
        buckets: Sequence[int],
        gpu: Gpu,
        reopen: Callable[[], Session],
        device: str = "cuda",
    ) -> None:
        self.provider = inner.provider
        self._inner: Session | None = inner
        self._reopen = reopen
        self._forms = [Tensor.of(spec, 1) for spec in signature.inputs]
        self._stagings = {
            rows: Staging(_Graph(inner, number), signature, rows, gpu, gpu, device)
            for number, rows in enumerate(buckets, 1)
        }
        self._told = False
        self._thread = ThreadPoolExecutor(1, "mlctl-cuda")

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All outputs, in memory of their own; RunError if the runtime fails."""
        return self._thread.submit(self._run, inputs).result()

    def _run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        # Only what went well is put back: a graph must not outlive the memory it was captured on.
        rows = self._fitting_rows(inputs)
        staging = self._stagings.pop(rows, None)
        if staging is None:
            self._tell()
            return self._plain().run(inputs)
        try:
            answers = _replay(staging, inputs)
        except (RunError, CudaError) as error:
            logger.warning("from now on without CUDA graphs: %s", str(error))
        else:
            self._stagings[rows] = staging
            return answers
        # A failed capture may leave the session stuck, and there may be no memory for two.
        del staging
        self._stagings.clear()
        self._inner = None
        return self._plain().run(inputs)

    def _plain(self) -> Session:
        """The session for what is not replayed."""
        if self._inner is None:
            try:
                self._inner = self._reopen()
            except MlctlError as error:
                raise RunError(str(error)) from error
        return self._inner

    def _fitting_rows(self, inputs: Mapping[str, np.ndarray]) -> int:
        """How many rows all inputs have; 0 if one is not of its form, which the runtime tells."""
        if len(inputs) != len(self._forms):
            return 0
        rows = {self._rows_of(form, inputs.get(form.name)) for form in self._forms}
        return rows.pop() if len(rows) == 1 else 0

    @staticmethod
    def _rows_of(form: Tensor, array: np.ndarray | None) -> int:
        if array is None or array.dtype != form.dtype or array.shape[1:] != form.inner:
            return 0
        return array.shape[0] if array.ndim else 0

    def _tell(self) -> None:
        if self._stagings and not self._told:
            self._told = True
            logger.info("batches of other sizes than the bundle's run without a CUDA graph")


def _replay(staging: Staging, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    loaded = staging.load(inputs)
    staging.run(loaded)
    return staging.fetch(loaded)


def open_graphed(
    model: Path, signature: Signature, batching: Batching, threads: int = 1
) -> Session:
    """A session on CUDA for `model`, a plain one if graphs of it cannot be captured.

    Raises what `open_session` does.
    """

    def plain() -> Session:
        return open_session(model, _PROVIDER, threads)

    if not (signature.batched and can_stage(signature)):
        reason = "its tensors are not rows of one size"
    else:
        try:
            inner = open_session(model, _PROVIDER, threads, graphs=True)
            assert isinstance(inner, OnnxSession)
            gpu = Gpu(Driver())
            return GraphedSession(inner, signature, batching.buckets, gpu, plain)
        except CudaError as error:
            reason = str(error)
        except MlctlError as error:
            # Control flow, and operators without a kernel for the device, are refused here.
            if error.code is not ErrorCode.UNSUPPORTED_MODEL:
                raise
            reason = error.message
    logger.warning("%s runs without CUDA graphs: %s", model.name, reason)
    return plain()
