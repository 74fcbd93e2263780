"""Sessions without a runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from mlctl.core.errors import MlctlError
from mlctl.services.model.run_errors import RunError


class FunctionSession:
    """A session around a plain function; what the function raises is a failure of the runtime."""

    def __init__(
        self, function: Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]
    ) -> None:
        self.provider = "memory"
        self._function = function

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        try:
            return self._function(inputs)
        except MlctlError:
            raise
        except Exception as error:
            raise RunError(str(error)) from error
