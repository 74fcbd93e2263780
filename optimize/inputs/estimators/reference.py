"""A registered estimator as the reference that all variants are compared with."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mlctl.bundle.manifest import MODEL_NAME
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.quiet import first_line
from mlctl.core.text import printable
from mlctl.optimize.data import Tensors
from mlctl.optimize.inputs.estimators.convert import convert
from mlctl.optimize.inputs.estimators.estimator import Estimator, describe


class EstimatorReference:
    """Implements `mlctl.optimize.proofs.reference.Reference`."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator

    @property
    def name(self) -> str:
        """The classes of the estimator and its steps, in words."""
        return describe(self._estimator.model)

    def run(self, inputs: Tensors) -> dict[str, np.ndarray]:
        try:
            return self._estimator.run(inputs)
        except Exception as error:  # the estimator's own checks raise anything
            reason = printable(first_line(error))
            raise MlctlError(
                ErrorCode.UNSUPPORTED_MODEL,
                f"the source model does not run on these rows: {reason}",
                "Check the rows; for missing values put a SimpleImputer, for unseen categories "
                'OneHotEncoder(handle_unknown="ignore") into the pipeline before training.',
            ) from error

    def export(self, directory: Path, example: Tensors) -> None:
        convert(self._estimator, directory / MODEL_NAME, example)
