"""A bundle's transform: user code that runs before and after the model, and checks of its results.

The code is loaded only from a verified bundle, as a module with a unique name, so that two bundles
in one process do not mix. It gets read-only arrays, and its results are checked, in calibration as
in serving: all calls go through this module.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from time import perf_counter
from types import CodeType, ModuleType
from typing import Any, NoReturn

import numpy as np

from mlctl.bundle.arrays import Arrays
from mlctl.bundle.manifest import TRANSFORM_NAME
from mlctl.bundle.tensors import DYNAMIC, Datatype, Signature, TensorSpec
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.model.features import FeatureLookup, FeatureTable
from mlctl.services.model.input_checks import describe_mismatch

Pieces = Generator[dict[str, np.ndarray], None, None]

_END = object()
_MAX_SENTENCE = 300


class TransformError(Exception):
    """The transform violated its contract; the message names the function, and line or tensor."""


def load_transform(bundle: VerifiedBundle) -> Transform | None:
    """Load the transform of `bundle`, None if it has none; UNSUPPORTED_MODEL if that fails.

    RUNTIME_MISSING names a required package that is not installed. If it has `lookups`, their
    store is to be set.
    """
    manifest = bundle.manifest
    if manifest.transform is None:
        return None
    from mlctl.services.model.requirements import check_installed, transform_requirements

    check_installed(transform_requirements(bundle))
    try:
        module = load_module(bundle.path(TRANSFORM_NAME), f"mlctl_transform_{bundle.digest}")
        return Transform(module, manifest.signature, manifest.model_signature)
    except TransformError as error:
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            f"{TRANSFORM_NAME} of model {manifest.name!r}: {error}",
            "Correct the transform, or install what it imports, and run `mlctl optimize` again.",
        ) from error


def load_module(path: Path, name: str) -> ModuleType:
    """Import the Python file `path` as the module `name`; TransformError names a failing line."""
    loader = _SourceLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickles look up the module of the user's types here.
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except SyntaxError as error:
        del sys.modules[name]
        raise TransformError(f"syntax error in line {error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise TransformError(f"it cannot be imported{_describe(error, path)}") from error
    return module


class _SourceLoader(SourceFileLoader):
    """Compiles the source each time.

    A bytecode cache in the bundle would be a file outside the manifest, and a cache elsewhere is
    not verified.
    """

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


class Spent:
    """The seconds that a function has run so far; only the running thread writes them."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0


@dataclass(frozen=True, slots=True)
class TransformStep:
    """One of the two functions. It returns tensors of `specs`, with rows first if `batched`.

    `yields` if it is a generator function, which streams its result.
    """

    name: str
    function: Callable[[dict[str, np.ndarray]], Any]
    path: Path
    specs: tuple[TensorSpec, ...]
    batched: bool
    yields: bool = False
    spent: Spent = field(default_factory=Spent, compare=False)

    def run(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """Return the checked result for `arrays`, which the function cannot modify."""
        return self.call({name: _read_only(array) for name, array in arrays.items()})

    def call(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the checked result for writable `arrays`; TransformError if that fails."""
        if self.yields:
            return self.whole(list(self._pieces(arrays)))
        with self._measured():
            result = self.function(arrays)
        return self._checked(result, self._rows(arrays))

    def pieces(self, arrays: Arrays) -> Pieces:
        """Yield the checked pieces of a generator function, computed on demand.

        Closing the generator closes the function at its last yield.
        """
        return self._pieces({name: _read_only(array) for name, array in arrays.items()})

    def whole(self, pieces: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Join pieces: concatenate tensors with a dynamic dimension, take the last of others."""
        if len(pieces) == 1:
            return pieces[0]
        axis = 1 if self.batched else 0
        return {
            spec.name: np.concatenate([piece[spec.name] for piece in pieces], axis=axis)
            if spec.shape[axis : axis + 1] == (DYNAMIC,)
            else pieces[-1][spec.name]
            for spec in self.specs
        }

    def _pieces(self, arrays: dict[str, np.ndarray]) -> Pieces:
        rows = self._rows(arrays)
        empty = True
        with closing(self.function(arrays)) as made:
            while True:
                with self._measured():
                    piece = next(made, _END)
                if piece is _END:
                    break
                empty = False
                # A copy, because the function may reuse the array for its next piece.
                yield {name: array.copy() for name, array in self._checked(piece, rows).items()}
        if empty:
            self._fail("it yielded nothing")

    def _rows(self, arrays: Arrays) -> int | None:
        return next(iter(arrays.values())).shape[0] if self.batched else None

    @contextmanager
    def _measured(self) -> Iterator[None]:
        """Convert exceptions of the function to TransformError, and measure its time."""
        started = perf_counter()
        try:
            yield
        except (Exception, SystemExit) as error:
            raise TransformError(f"{self.name} failed{_describe(error, self.path)}") from error
        finally:
            self.spent.seconds += perf_counter() - started

    def _checked(self, result: object, rows: int | None) -> dict[str, np.ndarray]:
        if not isinstance(result, Mapping):
            self._fail(f"it returned {type(result).__name__}, expected a dict of arrays")
        names = [spec.name for spec in self.specs]
        if set(result) != set(names):
            self._fail(f"it returned the tensors {list(result)}, expected {names}")
        for spec in self.specs:
            if reason := _mismatch(spec, result[spec.name], rows):
                self._fail(reason)
        return {name: result[name] for name in names}

    def _fail(self, reason: str) -> NoReturn:
        raise TransformError(f"{self.name}: {reason}")


class Transform:
    """The functions of a transform's module; a function that it does not define changes nothing."""

    def __init__(self, module: ModuleType, signature: Signature, model: Signature) -> None:
        """Connect the API's `signature` with the `model`'s; TransformError if they do not match."""
        self.before = _step(module, "preprocess", model.inputs, signature.batched)
        self.after = _step(module, "postprocess", signature.outputs, signature.batched)
        self.lookups = _lookups(module, signature)
        if self.before is None and self.after is None:
            raise TransformError("it defines neither preprocess nor postprocess")
        if self.lookups is not None and self.before is None:
            raise TransformError("FEATURES are for preprocess, which is not defined")
        if self.before is not None and self.before.yields:
            raise TransformError("preprocess must return its result; only postprocess may yield")
        if self.before is None and signature.inputs != model.inputs:
            raise TransformError("INPUTS differ from the model's, but preprocess is not defined")
        if self.after is None and signature.outputs != model.outputs:
            raise TransformError("OUTPUTS differ from the model's, but postprocess is not defined")

    def preprocess(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Return the model's inputs for checked `inputs`.

        Features are looked up unless `inputs` have them, as golden rows and evaluation data do.
        User code rejects rows with a ValueError, which becomes INVALID_INPUT with its message.
        SOURCE_UNAVAILABLE if the store of features does not answer; any other failure is a
        TransformError.
        """
        if self.before is None:
            return dict(inputs)
        if self.lookups is not None and self.lookups.table.specs[0].name not in inputs:
            inputs = {**inputs, **self._look_up(self.lookups, inputs)}
        try:
            return self.before.run(inputs)
        except TransformError as error:
            if isinstance(error.__cause__, ValueError):
                reason = _sentence(error.__cause__) or "the transform rejects these rows"
                raise MlctlError(ErrorCode.INVALID_INPUT, reason) from error
            raise

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds that each function and the lookup of features have run so far, by name."""
        found = {step.name: step.spent.seconds for step in (self.before, self.after) if step}
        return found if self.lookups is None else {"features": self.lookups.seconds, **found}

    @property
    def yields(self) -> bool:
        """Whether the answer is streamed."""
        return self.after is not None and self.after.yields

    def postprocess(self, outputs: Arrays) -> dict[str, np.ndarray]:
        """Return the API's outputs for the model's `outputs`, with all pieces joined."""
        return dict(outputs) if self.after is None else self.after.run(outputs)

    def pieces(self, outputs: Arrays) -> Pieces:
        """Yield the API's outputs piece by piece; a single piece if they are not streamed."""
        if self.after is not None and self.after.yields:
            yield from self.after.pieces(outputs)
        else:
            yield self.postprocess(outputs)

    def whole(self, pieces: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Join all pieces to the result of `postprocess`."""
        return pieces[0] if self.after is None else self.after.whole(pieces)

    def _look_up(self, lookups: FeatureLookup, inputs: Arrays) -> dict[str, np.ndarray]:
        try:
            return lookups(inputs[lookups.table.key])
        except (TypeError, ValueError, OverflowError) as error:
            raise TransformError(f"FEATURES: a stored value is wrong: {error}") from None


def _lookups(module: ModuleType, signature: Signature) -> FeatureLookup | None:
    declared = getattr(module, "FEATURES", None)
    if declared is None:
        return None
    try:
        return FeatureLookup(FeatureTable.parse(declared, signature.inputs))
    except ValueError as error:
        raise TransformError(f"FEATURES: {error}") from error


def _step(
    module: ModuleType, name: str, specs: tuple[TensorSpec, ...], batched: bool
) -> TransformStep | None:
    function = getattr(module, name, None)
    if function is None:
        return None
    if not callable(function):
        raise TransformError(f"{name} is not a function")
    yields = inspect.isgeneratorfunction(function)
    return TransformStep(name, function, Path(str(module.__file__)), specs, batched, yields)


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


def _mismatch(spec: TensorSpec, value: object, rows: int | None) -> str | None:
    if not isinstance(value, np.ndarray):
        return f"tensor {spec.name!r}: it is a {type(value).__name__}, expected an array"
    if reason := describe_mismatch(spec, value):
        return reason
    if rows is not None and value.shape[0] != rows:
        return f"tensor {spec.name!r}: it has {value.shape[0]} rows, expected {rows}"
    if spec.dtype is Datatype.BYTES and not all(type(item) is bytes for item in value.flat):
        return f"tensor {spec.name!r}: an element is not bytes"
    return None


def _describe(error: BaseException, path: Path) -> str:
    """Return the line of the file `path` that failed, and the exception."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    where = f" in line {lines[-1]}" if lines else ""
    return f"{where}: {type(error).__name__}: {_sentence(error)}"


def _sentence(error: BaseException) -> str:
    return " ".join(str(error).split())[:_MAX_SENTENCE]
