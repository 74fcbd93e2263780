"""The scorer: one model behind its signature, used online, in batch and in streams.

validate -> preprocess -> session -> check -> postprocess. Inputs are checked against the signature
first, so an invalid request costs little and gets a precise error. The two user functions run only
if the bundle has a transform.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np

from mlctl.bundle.arrays import Arrays
from mlctl.bundle.manifest import GOLDEN_NAME, MODEL_NAME, InputConstraints, Manifest
from mlctl.bundle.tensors import Datatype, TensorSpec
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.model.features import FeatureLookup, open_store
from mlctl.services.model.golden import load_golden
from mlctl.services.model.input_checks import (
    ValueChecks,
    check_inputs,
    check_lengths,
    check_max_length,
)
from mlctl.services.model.padding import RowPaddedSession, padded_sizes
from mlctl.services.model.run_errors import (
    InputRejectedError,
    ModelRunError,
    RunError,
    is_out_of_memory,
)
from mlctl.services.model.session import Session, open_session
from mlctl.services.model.settings import RuntimeSettings
from mlctl.services.model.transform import Transform, TransformError, load_transform

# On these providers a new shape costs more than the surplus rows of the next larger bucket:
# CUDA's convolutions search for the fastest algorithm again, which takes up to a second.
_FIXED_SHAPES = ("cuda", "tensorrt")
logger = logging.getLogger("mlctl.scorer")


class Scorer:
    """One model behind its signature. `run` is for one thread at a time, `check` for any thread.

    `max_length` limits dynamic dimensions other than the rows; None does not.
    """

    max_length: int | None = None

    def __init__(
        self,
        manifest: Manifest,
        digest: str,
        session: Session,
        transform: Transform | None = None,
        golden: Path | None = None,
    ) -> None:
        """`golden` is the file of golden rows, which tell a bad row from a failing model."""
        assert (transform is None) == (manifest.transform is None)
        self.manifest = manifest
        self.digest = digest
        self.name = manifest.name
        self.signature = manifest.signature
        self.batched = manifest.signature.batched
        self.joinable = self.batched and manifest.batching.row_independent
        self.max_rows = manifest.batching.max_rows
        self._session = session
        self._transform = transform
        self._golden = golden
        self._inputs = {spec.name: spec for spec in manifest.signature.inputs}
        constraints = manifest.input_constraints or InputConstraints()
        self._equal_lengths = constraints.equal_lengths
        # Most models have none: then a request pays for no call.
        self._values = ValueChecks(constraints) or None
        self._model_outputs = manifest.model_signature.outputs

    @classmethod
    def open(
        cls, bundle: VerifiedBundle, settings: RuntimeSettings, *, pad_rows: bool | None = None
    ) -> Scorer:
        """Load the model of a verified bundle, and its transform if there is one.

        `pad_rows` pads batches to the bundle's sizes; None does so on CUDA and TensorRT only.
        """
        signature = bundle.manifest.model_signature
        for spec in (*signature.inputs, *signature.outputs):
            if spec.dtype is Datatype.BF16:
                raise MlctlError(
                    ErrorCode.UNSUPPORTED_MODEL,
                    f"tensor {spec.name!r} is BF16, which ONNX Runtime does not exchange",
                )
        batching = bundle.manifest.batching
        provider = settings.provider or bundle.manifest.variant.target
        model, threads = bundle.path(MODEL_NAME), settings.threads
        session: Session = open_session(
            model, provider, threads, batching=batching, lengths=settings.lengths
        )
        fixed = provider in _FIXED_SHAPES
        wants_fixed = fixed if pad_rows is None else pad_rows
        if wants_fixed and bundle.manifest.signature.batched and batching.row_independent:
            session = RowPaddedSession(session, padded_sizes(batching))
        transform, golden = load_transform(bundle), bundle.path(GOLDEN_NAME)
        if transform is not None and transform.lookups is not None:
            transform.lookups.store = open_store(settings)
        return cls(bundle.manifest, bundle.digest, session, transform, golden)

    def check(self, inputs: Arrays) -> int:
        """Check `inputs` against the signature; return their rows (1 without a batch dimension).

        INVALID_INPUT names the tensor, its value and the expected one; PAYLOAD_TOO_LARGE the size
        above `max_length`.
        """
        rows = check_inputs(self._inputs, inputs, batched=self.batched)
        if self._equal_lengths:
            check_lengths(self._equal_lengths, inputs)
        if self.max_length is not None:
            check_max_length(self._inputs, inputs, self.max_length, batched=self.batched)
        return rows

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Return all outputs for checked `inputs`; independent rows run `max_rows` at a time.

        A failure of the runtime or of the transform is INTERNAL without its text. Inputs that the
        runtime rejects, a ValueError of `preprocess`, and values that the manifest's constraints
        exclude are INVALID_INPUT with the reason. They are checked here because one check of a
        whole batch is cheaper than one per request.
        """
        if self._values is not None:
            self._values.check(inputs)
        if self._transform is None:
            return self._infer(inputs)
        with self._translate_errors():
            # All rows at once, so that a row number in an error is the caller's.
            prepared = self._transform.preprocess(inputs)
            return self._transform.postprocess(self._infer(prepared))

    @property
    def measures_larger(self) -> bool:
        """Whether batches larger than the bundle's may be timed and used.

        Not for TensorRT, whose engine accepts only the rows it was built for, nor for rows whose
        size varies: the time and memory of some say nothing about others.
        """
        allowed = self.joinable and self.manifest.batching.measure_larger
        return bool(allowed) and self.signature.bounded and self.provider != "tensorrt"

    @property
    def thread_safe(self) -> bool:
        """Whether several threads may call `run` at a time: on the CPU, without a transform.

        ONNX Runtime supports concurrent runs of one session; a user's functions may not.
        """
        return self._transform is None and self.provider == "cpu"

    @property
    def provider(self) -> str:
        """The name of the execution provider."""
        return self._session.provider

    @property
    def transform_seconds(self) -> dict[str, float]:
        """Seconds that each function of the transform has run so far; safe on any thread."""
        return {} if self._transform is None else self._transform.seconds

    @property
    def lookups(self) -> FeatureLookup | None:
        """The lookups of features, with what they counted; None if the model looks nothing up."""
        return None if self._transform is None else self._transform.lookups

    @property
    def yields(self) -> bool:
        """Whether the transform streams its answer."""
        return self._transform is not None and self._transform.yields

    def steps(
        self, inputs: Arrays, *, whole: bool
    ) -> Generator[dict[str, np.ndarray] | None, None, None]:
        """Do what `run` does, one step per resumption; yield None or the next piece of the answer.

        Only for a transform that `yields`. With `whole` there is one piece at the end, which is the
        result of `run`. Closing the generator cancels the remaining steps. Raises what `run` does.
        """
        if self._values is not None:
            self._values.check(inputs)
        assert self._transform is not None
        with self._translate_errors():
            outputs = self._infer(self._transform.preprocess(inputs))
            with closing(self._transform.pieces(outputs)) as pieces:
                if not whole:
                    yield from pieces
                    return
                made = []
                for piece in pieces:
                    made.append(piece)
                    yield None
                yield self._transform.whole(made)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Report a failure of the transform as one of the model: INTERNAL, without its text."""
        try:
            yield
        except TransformError as error:
            raise self._failed("the transform of ", error) from error

    def _failed(self, part: str, error: Exception) -> ModelRunError:
        how = "ran out of memory" if is_out_of_memory(error) else "failed"
        return ModelRunError(f"{part}model {self.name!r} {how} on these inputs")

    def _fault_of(self, error: RunError) -> MlctlError:
        """Return INVALID_INPUT if the inputs are at fault, else a ModelRunError.

        They are at fault if the runtime rejects them and still answers a golden row. Inputs that a
        transform produced are never the caller's fault.
        """
        rejected = isinstance(error, InputRejectedError) and self._transform is None
        if rejected and self._answers_golden():
            message = f"model {self.name!r} rejects these inputs: {error}"
            return MlctlError(ErrorCode.INVALID_INPUT, message)
        return self._failed("", error)

    def _answers_golden(self) -> bool:
        try:
            row = self._golden_row
            if row is None:
                return False
            self._session.run(row)
        except (MlctlError, RunError) as error:
            logger.warning("model %s does not answer a golden row: %s", self.name, str(error))
            return False
        return True

    @cached_property
    def _golden_row(self) -> Arrays | None:
        if self._golden is None:
            return None
        inputs, _ = load_golden(self._golden)
        return next(split_rows(inputs, 1)) if self.batched else inputs

    def _infer(self, inputs: Arrays) -> dict[str, np.ndarray]:
        if not self.joinable or self._first(inputs).shape[0] <= self.max_rows:
            return self._run_once(inputs)
        return join_rows([self._run_once(part) for part in split_rows(inputs, self.max_rows)])

    def _run_once(self, inputs: Arrays) -> dict[str, np.ndarray]:
        try:
            outputs = self._session.run(inputs)
        except MlctlError:
            raise
        except RunError as error:
            raise self._fault_of(error) from error
        except Exception as error:
            raise MlctlError(ErrorCode.INTERNAL, f"model {self.name!r} could not be run") from error
        rows = self._first(inputs).shape[0] if self.batched else None
        for spec in self._model_outputs:
            self._check_output(spec, outputs, rows)
        return outputs

    def _check_output(self, spec: TensorSpec, outputs: Arrays, rows: int | None) -> None:
        array = outputs.get(spec.name)
        if array is not None and rows is not None and array.shape == (rows, *spec.shape[1:]):
            return
        fits = array is not None and spec.mismatch(spec.dtype, array.shape) is None
        if array is None or not fits or (rows is not None and array.shape[0] != rows):
            shape = "no output" if array is None else f"shape {list(array.shape)}"
            logger.error("output %s: the model returned %s for %s rows", spec.name, shape, rows)
            raise ModelRunError(
                f"model {self.name!r} returned an output {spec.name!r} whose shape does not match "
                "its signature"
            )

    @staticmethod
    def _first(inputs: Arrays) -> np.ndarray:
        return next(iter(inputs.values()))


def join_rows(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Concatenate the rows of `parts`, by name."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def split_rows(arrays: Arrays, size: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield consecutive parts of at most `size` rows."""
    rows = next(iter(arrays.values())).shape[0]
    for start in range(0, rows, size):
        yield {name: array[start : start + size] for name, array in arrays.items()}
