"""The Python API: what the commands do, for notebooks and pipelines.

The functions work with the same registry, Bento store, cache and journal as the commands
(`MLCTL_HOME`), and raise `MlctlError` with the same codes.
"""

from pkgutil import extend_path

from bundle.errors import ErrorCode, MlctlError
from mlctl.chain import build, down, optimize, promote, rollback, status, up
from mlctl.client import Client
from optimize.goals import Goals
from optimize.prepare import OptimizeOptions
from rollout.domain.spec import RolloutSpec

# protoc puts the stubs of `mlctl client --lang proto` into `mlctl/models` of a folder of yours.
__path__ = extend_path(__path__, __name__)

__all__ = [
    "Client",
    "ErrorCode",
    "Goals",
    "MlctlError",
    "OptimizeOptions",
    "RolloutSpec",
    "build",
    "down",
    "optimize",
    "promote",
    "rollback",
    "status",
    "up",
]
