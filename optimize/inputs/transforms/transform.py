"""Read a user's transform: check it, snapshot it, and copy it into the bundle.

The files are copied to a snapshot named by their content, and loaded from there. So
calibration and evaluation run the files that will serve, and a missing file
fails now and not in production.
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

from mlctl.bundle import manifest
from mlctl.bundle.manifest import TRANSFORM_FOLDER, TRANSFORM_REQUIREMENTS
from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.quiet import quiet
from mlctl.optimize.inputs.transforms.checks import (
    SAMPLE_ROWS,
    Runner,
    Tensors,
    check_pure,
    rows_are_independent,
)
from mlctl.optimize.inputs.transforms.files import FILE_NAME, content_sha256, invalid, snapshot
from mlctl.services.model.requirements import check_installed, parse_requirements
from mlctl.services.model.transform import Transform, TransformError, load_module

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SourceTransform:
    """A transform: `root` is its snapshot, `sha256` the hash of all its files.

    `api_signature` is that of clients, `model_signature` that of the
    model. All faults of its code are raised as INVALID_INPUT.
    """

    root: Path
    api_signature: Signature
    model_signature: Signature
    sha256: str
    transform: Transform = field(repr=False)

    @property
    def data_signature(self) -> Signature:
        """That of evaluation data: clients' tensors and the features that a server looks up."""
        api, lookups = self.api_signature, self.transform.lookups
        if lookups is None:
            return api
        return Signature(inputs=(*api.inputs, *lookups.table.specs), outputs=api.outputs)

    def preprocess(self, inputs: Tensors) -> dict[str, np.ndarray]:
        """Return the model's inputs for rows in the API's form."""
        return _tried(lambda: self._prepare(inputs))

    def postprocess(self, outputs: Tensors) -> dict[str, np.ndarray]:
        """Return the API's outputs for the model's outputs."""
        return _tried(lambda: self.transform.postprocess(outputs))

    def around(self, run: Runner) -> Runner:
        """Wrap the model's `run`: from the API's inputs to the API's outputs."""
        return lambda inputs: self.postprocess(run(self.preprocess(inputs)))

    def check_pure(self, inputs: Tensors, run: Runner) -> None:
        """Reject a function that alters its argument or is not deterministic; INVALID_INPUT.

        Runs on the first of the rows `inputs`; `run` is the model, in its own form.
        """
        sample = self._sample(inputs)
        _tried(lambda: check_pure(self.transform.before, sample))
        if self.transform.after is not None:
            outputs = run(self.preprocess(sample))
            _tried(lambda: check_pure(self.transform.after, outputs))

    def is_row_independent(self, inputs: Tensors, run: Runner) -> bool:
        """Return whether f(a ++ b) = f(a) ++ f(b), f being `run` with the transform around it.

        Judged as a whole: a transform that pads to the longest row is independent if the model
        ignores the padding.
        """
        if not self.api_signature.batched:
            return False
        return rows_are_independent(self.around(run), self._sample(inputs))

    def manifest_entry(self) -> manifest.TransformSpec:
        """Return its entry in the bundle's manifest."""
        return manifest.TransformSpec(model_signature=self.model_signature)

    def copy_into(self, bundle: Path) -> None:
        """Copy its files into the folder of a bundle that is not sealed yet.

        FILE_ALTERED if the snapshot has changed.
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
                f"preprocess rejects rows of the data: {error.message}",
                "Leave these rows out, or correct preprocess to accept them; its arrays are "
                "read-only, so copy an array before writing to it.",
            ) from error


def read_transform(path: Path, model_signature: Signature) -> SourceTransform:
    """Read the file `path`, or the folder `path` with a transform.py and small data files.

    INVALID_INPUT for a missing file, a syntax error (with its line), a failed
    import, no functions, a bad INPUTS or OUTPUTS, a link, too many bytes, or a
    requirements.txt that is not names with versions. RUNTIME_MISSING if one of those is not
    installed: the measured code must be the code that serves.
    """
    root, sha256 = snapshot(path)
    needs = root / Path(TRANSFORM_REQUIREMENTS).name
    if needs.is_file():
        check_installed(parse_requirements(needs.read_bytes()))
    return _tried(lambda: _load(root, sha256, model_signature))


def _tried(work: Callable[[], _T]) -> _T:
    """Run user code without its prints, with its faults as INVALID_INPUT."""
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
    """Return the model's signature, replaced by the sides that the module declares."""
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
    """Read a V2 name, a numpy name or a numpy type; ValueError or TypeError for anything else."""
    if isinstance(dtype, str):
        return Datatype.__members__.get(dtype) or Datatype.from_numpy_name(dtype)
    return Datatype.from_numpy_name(np.dtype(dtype).name)  # type: ignore[call-overload]
