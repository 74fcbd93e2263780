"""Reading a user's transform: checked, kept as it was read, and copied into the bundle.

What is read is copied to a snapshot named by its content, and loaded from there. So
calibration and evaluation run the very files that will serve, and a file that was
left behind is missed now and not in production.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import numpy as np
from pydantic import ValidationError

from bundle import manifest
from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import TRANSFORM_FOLDER, TRANSFORM_REQUIREMENTS
from bundle.tensors import Datatype, Signature, TensorSpec
from optimize.transforms.checks import (
    SAMPLE_ROWS,
    Runner,
    Tensors,
    check_pure,
    rows_are_independent,
)
from optimize.transforms.files import FILE_NAME, content_sha256, invalid, snapshot
from registry.quiet import quiet
from services.runtime.requirements import check_installed, parse_requirements
from services.runtime.transform import Transform, TransformError, load_module

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SourceTransform:
    """A transform as it was read: `root` is its snapshot, `sha256` the hash of all its files.

    `api_signature` is what clients and evaluation data have, `model_signature` what the
    model takes and gives. INVALID_INPUT is raised for all that its code does wrong.
    """

    root: Path
    api_signature: Signature
    model_signature: Signature
    sha256: str
    transform: Transform = field(repr=False)

    def preprocess(self, inputs: Tensors) -> dict[str, np.ndarray]:
        """The model's inputs for rows in the API's form, by the functions that will serve."""
        return _tried(lambda: self._prepare(inputs))

    def postprocess(self, outputs: Tensors) -> dict[str, np.ndarray]:
        """The API's outputs for the model's."""
        return _tried(lambda: self.transform.postprocess(outputs))

    def around(self, run: Runner) -> Runner:
        """The model's `run` as clients see it: from the API's inputs to the API's outputs."""
        return lambda inputs: self.postprocess(run(self.preprocess(inputs)))

    def check_pure(self, inputs: Tensors, run: Runner) -> None:
        """INVALID_INPUT if a function alters its argument, or answers twice in different ways.

        Tried on the first of the rows `inputs`; `run` is the model, in its own form.
        """
        sample = self._sample(inputs)
        _tried(lambda: check_pure(self.transform.before, sample))
        if self.transform.after is not None:
            outputs = run(self.preprocess(sample))
            _tried(lambda: check_pure(self.transform.after, outputs))

    def is_row_independent(self, inputs: Tensors, run: Runner) -> bool:
        """Whether f(a ++ b) = f(a) ++ f(b), f being `run` and all that is around it.

        Asked of the whole, so that one which pads to the longest row is, if the model does
        not look at the padding.
        """
        if not self.api_signature.batched:
            return False
        return rows_are_independent(self.around(run), self._sample(inputs))

    def manifest_entry(self) -> manifest.TransformSpec:
        """What the bundle's manifest says of it."""
        return manifest.TransformSpec(model_signature=self.model_signature)

    def copy_into(self, bundle: Path) -> None:
        """Put its files into the folder of a bundle that is not sealed yet.

        FILE_ALTERED if the snapshot is no longer what was read.
        """
        target = bundle / TRANSFORM_FOLDER
        shutil.copytree(self.root, target, copy_function=shutil.copyfile)
        if content_sha256(target) != self.sha256:
            raise MlctlError(
                ErrorCode.FILE_ALTERED,
                f"the transform's files under {self.root} were changed",
                "Run the command again.",
            )

    def _sample(self, inputs: Tensors) -> Tensors:
        if not self.api_signature.batched:
            return inputs
        return {name: array[:SAMPLE_ROWS] for name, array in inputs.items()}

    def _prepare(self, inputs: Tensors) -> dict[str, np.ndarray]:
        try:
            return self.transform.preprocess(inputs)
        except MlctlError as error:
            raise invalid(
                f"preprocess refuses rows of the data: {error.message}",
                "Leave these rows out. If it should take them, correct it; its arrays are "
                "read-only, so copy what it writes to.",
            ) from error


def read_transform(path: Path, model_signature: Signature) -> SourceTransform:
    """Read the file `path`, or the folder `path` with a transform.py and small data files.

    INVALID_INPUT says what is wrong: no such file, a syntax error with its line, an
    import that fails, no functions, a bad INPUTS or OUTPUTS, a link, too many bytes, a
    requirements.txt that is not names with versions. RUNTIME_MISSING if one of those is not
    installed here: what is measured must be what serves.
    """
    root, sha256 = snapshot(path)
    needs = root / Path(TRANSFORM_REQUIREMENTS).name
    if needs.is_file():
        check_installed(parse_requirements(needs.read_bytes()))
    return _tried(lambda: _load(root, sha256, model_signature))


def _tried(work: Callable[[], _T]) -> _T:
    """What user code gives, without what it prints; its faults are the caller's."""
    try:
        with quiet():
            return work()
    except TransformError as error:
        raise invalid(f"the transform does not work: {error}") from error


def _load(root: Path, sha256: str, model: Signature) -> SourceTransform:
    module = load_module(root / FILE_NAME, f"mlctl_source_transform_{sha256}")
    api = _api_signature(module, model)
    return SourceTransform(root, api, model, sha256, Transform(module, api, model))


def _api_signature(module: ModuleType, model: Signature) -> Signature:
    """The model's signature with the sides that the module declares instead."""
    try:
        api = Signature(
            inputs=_declared(module, "INPUTS", model.inputs),
            outputs=_declared(module, "OUTPUTS", model.outputs),
        )
    except ValidationError as error:
        raise TransformError(f"INPUTS or OUTPUTS: {error.errors()[0]['msg']}") from error
    if api.batched != model.batched:
        raise TransformError(
            "the first size of every shape in INPUTS and OUTPUTS must be -1"
            if model.batched
            else "the model has no batch dimension, so INPUTS and OUTPUTS must not have one"
        )
    return api


def _declared(
    module: ModuleType, side: str, default: tuple[TensorSpec, ...]
) -> tuple[TensorSpec, ...]:
    declared = getattr(module, side, None)
    if declared is None:
        return default
    if not isinstance(declared, Mapping):
        raise TransformError(f"{side} must be a dict of name: (dtype, shape)")
    return tuple(_spec(side, name, value) for name, value in declared.items())


def _spec(side: str, name: object, value: object) -> TensorSpec:
    match value:
        case (dtype, [*shape]):
            pass
        case _:
            raise TransformError(f"{side}[{name!r}] must be (dtype, shape), as ('FP32', [-1, 4])")
    try:
        return TensorSpec.model_validate(
            {"name": name, "dtype": _datatype(dtype), "shape": tuple(shape)}, strict=True
        )
    except ValidationError as error:
        problem = error.errors()[0]
        where = problem["loc"][0]
        raise TransformError(f"{side}[{name!r}]: {where}: {problem['msg']}") from error
    except (TypeError, ValueError) as error:
        raise TransformError(f"{side}[{name!r}]: dtype {dtype!r} is unknown") from error


def _datatype(dtype: object) -> Datatype:
    """A V2 name, a numpy name or a numpy type; ValueError or TypeError if it is none of them."""
    if isinstance(dtype, str):
        known = Datatype.__members__.get(dtype)
        return known or Datatype.from_numpy_name(dtype)
    return Datatype.from_numpy_name(np.dtype(dtype).name)  # type: ignore[call-overload]
