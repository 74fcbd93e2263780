"""Which packages are installed, read from their metadata without importing them."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import metadata

from mlctl.core.errors import ErrorCode, MlctlError

# They overwrite each other's files, so at most one of them may be installed.
RUNTIMES = ("onnxruntime", "onnxruntime-gpu")

# The tag of the Bento in an image; its Containerfile sets the variable.
IMAGE_VARIABLE = "MLCTL_IMAGE_BENTO"


def installed_version(distribution: str) -> str | None:
    """Return the installed version of a distribution, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def install_hint(extras: str) -> str:
    """Return the command that installs `extras` of mlctl, such as "cpu,serve", from its checkout.

    It names no package index: `mlctl` on the public one is another project. In an image, where
    nothing is installed, it is the command that makes an image with them.
    """
    if bento := os.environ.get(IMAGE_VARIABLE):
        return f"Build the image with it: mlctl containerize {bento} --with {extras}"
    return f"In the checkout of mlctl: pip install -c constraints.txt '.[{extras}]'"


def require_packages(extra: str, *names: str) -> None:
    """Raise RUNTIME_MISSING unless the distributions `names`, of mlctl's `extra`, are installed."""
    for name in names:
        if installed_version(name) is None:
            raise MlctlError(
                ErrorCode.RUNTIME_MISSING,
                f"the package {name} is not installed",
                install_hint(extra),
            )


def require_onnxruntime(is_installed: Callable[[str], bool] | None = None) -> None:
    """Raise RUNTIME_MISSING or RUNTIME_CONFLICT unless exactly one ONNX Runtime is installed.

    onnxruntime and onnxruntime-gpu install the same files: with both, either may have
    overwritten the other. `is_installed` defaults to this environment's packages.
    """
    check = is_installed or (lambda name: installed_version(name) is not None)
    found = [name for name in RUNTIMES if check(name)]
    if not found:
        raise MlctlError(
            ErrorCode.RUNTIME_MISSING,
            "ONNX Runtime is not installed",
            f"{install_hint('cpu')} (gpu for CUDA)",
        )
    if len(found) > 1:
        raise MlctlError(ErrorCode.RUNTIME_CONFLICT, f"{' and '.join(found)} are both installed")
