"""The build context of an image, as one folder, and the engine that builds the image.

The folder is the whole context of the engine and needs no mlctl. The same Bento, lock file and base
give the same bytes, with the same times.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from mlctl.bento.containers import health
from mlctl.bento.containers.containerfile import Image, base_labels, containerfile
from mlctl.bento.containers.lock import Lock, Platform
from mlctl.bento.containers.resolve import python_version
from mlctl.bento.containers.sbom import sbom_of
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import scratch_directory
from mlctl.services.layout.bento_layout import BentoContents, read_contents
from mlctl.services.layout.bento_store import DIGEST_LABEL, BentoInfo

CONTAINERFILE = "Containerfile"
LOCK_NAME = "requirements.lock"
SBOM_NAME = "sbom.cdx.json"
_HEALTH = "health.py"
_BENTO = "bento"
# BentoML's own Dockerfile and requirements, and bytecode.
_EXCLUDED = ("env", "__pycache__")
_IGNORE = "# Only what the Containerfile copies.\n*\n" + "".join(
    f"!{name}\n" for name in (_BENTO, _HEALTH, LOCK_NAME, SBOM_NAME)
)
_IGNORE_NAMES = (".containerignore", ".dockerignore")
# 1980-01-01, the earliest time that archives can hold.
_TIME = 315_532_800
_GPU_PACKAGE = "onnxruntime-gpu"
_BUILD_SECONDS = 3600.0


class Engine(StrEnum):
    """A program that builds images."""

    DOCKER = "docker"
    PODMAN = "podman"
    BUILDAH = "buildah"


@dataclass(frozen=True, slots=True)
class Context:
    """A written build context: its folder and the digest of the bundles in it."""

    folder: Path
    digest: str


def default_base() -> str:
    """Return the default base image: Python of this version on Debian 12."""
    return f"docker.io/library/python:{python_version()}-slim-bookworm"


def write_context(
    bento: BentoInfo, lock: Lock, platform: Platform, base: str, folder: Path
) -> Context:
    """Write the build context of `bento` to `folder`, which an older context may occupy.

    INVALID_INPUT if the folder holds something else, or mlctl did not build the Bento; raises as
    `read_contents` does for an altered Bento.
    """
    packed = read_contents(bento.source)
    if bento.labels.get(DIGEST_LABEL) != packed.digest:
        raise MlctlError(
            ErrorCode.DIGEST_MISMATCH, f"{bento.tag} does not hold the models that its label names"
        )
    _require_context(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    labels = image_labels(bento, packed)
    image = Image(bento.tag, base, labels, gpu=_GPU_PACKAGE in lock.versions())
    with scratch_directory(folder.parent) as scratch:
        made = scratch / "context"
        shutil.copytree(
            bento.path, made / _BENTO, ignore=shutil.ignore_patterns(*_EXCLUDED), symlinks=True
        )
        shutil.copyfile(Path(health.__file__), made / _HEALTH)
        (made / LOCK_NAME).write_text(lock.text())
        (made / SBOM_NAME).write_bytes(sbom_of(bento, packed, lock, platform))
        (made / CONTAINERFILE).write_text(containerfile(image))
        for name in _IGNORE_NAMES:
            (made / name).write_text(_IGNORE)
        _settle(made)
        if folder.exists():
            folder.rename(scratch / "replaced")
        made.rename(folder)
    return Context(folder, packed.digest)


def image_labels(bento: BentoInfo, packed: BentoContents) -> dict[str, str]:
    """Return the image's labels: the chain from the registry's versions to the bundles."""
    name, _, version = bento.tag.partition(":")
    labels = {
        "org.opencontainers.image.title": name,
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.revision": packed.digest,
    }
    labels |= {key: text for key, text in bento.labels.items() if key.startswith("mlctl.")}
    for bundle in packed.bundles:
        manifest = bundle.manifest
        one = f"mlctl.models.{manifest.name}"
        labels[f"{one}.digest"] = bundle.digest
        labels[f"{one}.source"] = manifest.source.uri
        labels[f"{one}.source-sha256"] = manifest.source.sha256
        labels[f"{one}.recipe"] = manifest.variant.recipe
    return labels


def find_engine() -> Engine | None:
    """Return the first engine that is installed here."""
    return next((engine for engine in Engine if shutil.which(engine) is not None), None)


def build_image(engine: Engine, context: Context, image: str, platform: Platform) -> None:
    """Build `image` (NAME:TAG) from the context; the engine's output goes to stderr.

    RUNTIME_MISSING without the engine; INTERNAL if it fails, after it printed the reason.
    """
    base_labels(image)
    if shutil.which(engine) is None:
        raise MlctlError(
            ErrorCode.RUNTIME_MISSING,
            f"{engine} is not installed",
            "Install it, or write the build context alone with --engine none.",
        )
    done = subprocess.run(
        build_command(engine, context.folder, image, platform),
        stdout=2,
        check=False,
        timeout=_BUILD_SECONDS,
        env=_environment(os.environ),
    )
    if done.returncode != 0:
        raise MlctlError(
            ErrorCode.INTERNAL,
            f"{engine} could not build {image} (exit code {done.returncode})",
            f"Its output is above. The build context is complete: {context.folder}",
        )


def build_command(engine: Engine, folder: Path, image: str, platform: Platform) -> list[str]:
    """Return the engine's command line; the index that pip uses here is a build argument."""
    command = [engine.value, "build" if engine is not Engine.BUILDAH else "bud"]
    if engine is not Engine.DOCKER:
        command += ["--format", "docker"]  # the OCI format has no health check
    command += ["--platform", platform.oci, "--tag", image]
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        if os.environ.get(name):
            command += ["--build-arg", name]  # the value comes from the environment
    return [*command, "--file", str(folder / CONTAINERFILE), str(folder)]


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    return {**inherited, "DOCKER_BUILDKIT": "1", "SOURCE_DATE_EPOCH": str(_TIME)}


def _require_context(folder: Path) -> None:
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        if (folder / CONTAINERFILE).is_file() and (folder / LOCK_NAME).is_file():
            return
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{folder} is not empty and is not a build context of mlctl",
            "Name another directory.",
        )


def _settle(folder: Path) -> None:
    """Give all files one time and plain permissions, so that two runs give the same context."""
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (_TIME, _TIME))
