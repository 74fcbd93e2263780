"""The tensors of one call by their names; their shapes and dtypes are a signature's."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

Arrays = Mapping[str, np.ndarray]
