"""Which packages are installed here, asked of their metadata and never by importing them."""

from __future__ import annotations

from importlib import metadata

# They overwrite each other's files, so at most one of them may be installed.
RUNTIMES = ("onnxruntime", "onnxruntime-gpu")


def installed_version(distribution: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def install_hint(extras: str) -> str:
    """Return the command that installs `extras` of mlctl, such as "cpu,serve", from its checkout.

    It names no package index: `mlctl` on the public one is another project.
    """
    return f"In the checkout of mlctl: pip install -c constraints.txt '.[{extras}]'"
