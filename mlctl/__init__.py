"""From a model in the MLflow registry to traffic in production: `chain`, `Client` and their values.

The packages of mlctl lie at the top of the repository; the links beside this file give them their
names, `mlctl.services` and so on. Nothing is imported here before it is asked for, because servers
and the command load this module too.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from pkgutil import extend_path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlctl.client import Client
    from mlctl.core.errors import ErrorCode, MlctlError
    from mlctl.optimize.inputs.prepare import OptimizeOptions
    from mlctl.optimize.variants.goals import Goals
    from mlctl.rollout.domain.spec import RolloutSpec

__version__ = "0.1.0"

__all__ = ["Client", "ErrorCode", "Goals", "MlctlError", "OptimizeOptions", "RolloutSpec"]

_MODULES = {
    "Client": "client",
    "ErrorCode": "core.errors",
    "Goals": "optimize.variants.goals",
    "MlctlError": "core.errors",
    "OptimizeOptions": "optimize.inputs.prepare",
    "RolloutSpec": "rollout.domain.spec",
}

# protoc puts the stubs of `mlctl client --lang proto` into `mlctl/models` of a folder of yours.
__path__ = extend_path(__path__, __name__)
# `bentoml build` at the root of the repository does not follow links.
if not Path(__file__).with_name("bundle").exists():
    __path__.append(str(Path(__file__).parent.parent))


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
