"""A bundle's transform: its author's code before and after the model, loaded and held to its word.

The code is loaded only from a bundle whose digests were verified, under a name of its own,
so that two bundles in one process keep apart. Arrays are handed to it read-only, and what
it returns is checked, in calibration as in serving: this is the one way to call it.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn

import numpy as np

from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import TRANSFORM_NAME
from bundle.tensors import Datatype, Signature, TensorSpec
from bundle.verify import VerifiedBundle
from services.forms import misfit

Arrays = Mapping[str, np.ndarray]

_MAX_SENTENCE = 300


class TransformError(Exception):
    """The transform broke its contract; the message names the function, and the line or tensor."""


def load_transform(bundle: VerifiedBundle) -> Transform | None:
    """The transform of `bundle`, or None if it has none; UNSUPPORTED_MODEL if it does not load."""
    manifest = bundle.manifest
    if manifest.transform is None:
        return None
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
    """Run the Python file `path` as the module `name`; TransformError names the line at fault."""
    loader = _SourceLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickles of the user's types look their module up here.
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except SyntaxError as error:
        del sys.modules[name]
        raise TransformError(f"syntax error in line {error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise TransformError(f"it cannot be imported{_told(error, path)}") from error
    return module


class _SourceLoader(SourceFileLoader):
    """Compiles the source each time.

    A bytecode cache in the bundle would be a file that no manifest lists, and one found
    elsewhere is not what was verified.
    """

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


@dataclass(frozen=True, slots=True)
class Step:
    """One of the two functions; `specs` is what it returns, `batched` whether first come rows."""

    name: str
    function: Callable[[dict[str, np.ndarray]], Any]
    path: Path
    specs: tuple[TensorSpec, ...]
    batched: bool

    def run(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """The checked result for `arrays`, which the function cannot alter."""
        return self.call({name: _read_only(array) for name, array in arrays.items()})

    def call(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The checked result for `arrays` as they are; TransformError, caused by what it raised."""
        rows = next(iter(arrays.values())).shape[0] if self.batched else None
        try:
            result = self.function(arrays)
        except (Exception, SystemExit) as error:
            raise TransformError(f"{self.name} failed{_told(error, self.path)}") from error
        if not isinstance(result, Mapping):
            self._fail(f"it returned {type(result).__name__}, expected a dict of arrays")
        names = [spec.name for spec in self.specs]
        if set(result) != set(names):
            self._fail(f"it returned the tensors {list(result)}, expected {names}")
        for spec in self.specs:
            if reason := _wrong_form(spec, result[spec.name], rows):
                self._fail(reason)
        return {name: result[name] for name in names}

    def _fail(self, reason: str) -> NoReturn:
        raise TransformError(f"{self.name}: {reason}")


class Transform:
    """The functions of a transform's module; one that it does not define changes nothing."""

    def __init__(self, module: ModuleType, signature: Signature, model: Signature) -> None:
        """Between the API's `signature` and the `model`'s; TransformError if that cannot be."""
        self.before = _step(module, "preprocess", model.inputs, signature.batched)
        self.after = _step(module, "postprocess", signature.outputs, signature.batched)
        if self.before is None and self.after is None:
            raise TransformError("it defines neither preprocess nor postprocess")
        if self.before is None and signature.inputs != model.inputs:
            raise TransformError("INPUTS differ from the model's, but preprocess is not defined")
        if self.after is None and signature.outputs != model.outputs:
            raise TransformError("OUTPUTS differ from the model's, but postprocess is not defined")

    def preprocess(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """The model's inputs for `inputs`, which were checked.

        A ValueError is how user code refuses rows: INVALID_INPUT with its own sentence.
        All else that goes wrong is a TransformError.
        """
        if self.before is None:
            return dict(inputs)
        try:
            return self.before.run(inputs)
        except TransformError as error:
            if isinstance(error.__cause__, ValueError):
                reason = _sentence(error.__cause__) or "these rows are refused"
                raise MlctlError(ErrorCode.INVALID_INPUT, reason) from error
            raise

    def postprocess(self, outputs: Arrays) -> dict[str, np.ndarray]:
        """The API's outputs for the model's `outputs`; TransformError if that goes wrong."""
        return dict(outputs) if self.after is None else self.after.run(outputs)


def _step(
    module: ModuleType, name: str, specs: tuple[TensorSpec, ...], batched: bool
) -> Step | None:
    function = getattr(module, name, None)
    if function is None:
        return None
    if not callable(function):
        raise TransformError(f"{name} is not a function")
    return Step(name, function, Path(str(module.__file__)), specs, batched)


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


def _wrong_form(spec: TensorSpec, value: object, rows: int | None) -> str | None:
    if not isinstance(value, np.ndarray):
        return f"tensor {spec.name!r}: it is a {type(value).__name__}, expected an array"
    if reason := misfit(spec, value):
        return reason
    if rows is not None and value.shape[0] != rows:
        return f"tensor {spec.name!r}: it has {value.shape[0]} rows, expected {rows}"
    if spec.dtype is Datatype.BYTES and not all(type(item) is bytes for item in value.flat):
        return f"tensor {spec.name!r}: an element is not bytes"
    return None


def _told(error: BaseException, path: Path) -> str:
    """Where in the file `path`, and with which words, its code failed."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    where = f" in line {lines[-1]}" if lines else ""
    return f"{where}: {type(error).__name__}: {_sentence(error)}"


def _sentence(error: BaseException) -> str:
    return " ".join(str(error).split())[:_MAX_SENTENCE]
