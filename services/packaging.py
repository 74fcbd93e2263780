"""From a verified bundle to a Bento: our serving code, the bundle as `model/`, pinned requirements.

The version is the start of the bundle's digest, so the same bundle gives the same tag.
BentoML builds in a process of its own: it imports the service it builds, and that
import must see the staged files and leave nothing behind here.
"""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bundle as bundle_package
import services as services_package
from bundle.errors import ErrorCode, MlctlError
from bundle.files import write_atomic
from bundle.home import BENTO_HOME_VARIABLE, bento_environment, bento_home
from bundle.packages import RUNTIMES, installed_version
from bundle.verify import VerifiedBundle, verify
from services.runtime import require_onnxruntime
from services.service_bundle import digest_file
from services.store import BentoInfo, find_bento

SERVICE = "services.service:service"
MODEL_FOLDER = "model"
# What the image needs and no more: neither torch nor mlflow. BentoML adds itself, pinned.
REQUIREMENTS = (
    "googleapis-common-protos", "grpcio", "grpcio-health-checking", "grpcio-reflection",
    "hpack", "httptools", "numpy", "onnx", "orjson", "platformdirs",
    "prometheus-client", "protobuf",
    "pydantic", "pydantic-settings", "uvicorn", "uvloop",
)  # fmt: skip
_SOURCES = ("*.py", "*.proto", "*.binpb", "py.typed")


@dataclass(frozen=True, slots=True)
class BuiltBento:
    """A Bento of a bundle; `reused` if the store had it already."""

    tag: str
    digest: str
    path: Path
    reused: bool


def build_bento(
    bundle: VerifiedBundle, labels: Mapping[str, str], *, force: bool = False
) -> BuiltBento:
    """Build the Bento of `bundle`, or find it in the store; `force` builds it again.

    One that was altered, or that holds other serving code than this mlctl's, is built anew,
    and stays in the store until the new one takes its place.
    RUNTIME_MISSING if the packages that it needs are not installed here (their
    versions are pinned to these); INTERNAL with BentoML's own words if it fails.
    """
    tag = bento_tag(bundle)
    present = _present(tag)
    if present is not None and not force and _is_whole(present, bundle.digest):
        return BuiltBento(tag, bundle.digest, present.path, reused=True)
    requirements = pinned_requirements()
    with (
        tempfile.TemporaryDirectory(prefix="mlctl-bento-") as folder,
        # In the store's file system, so that what is built there can be moved in at once.
        tempfile.TemporaryDirectory(prefix=".mlctl-build-", dir=bento_home()) as apart,
    ):
        stage, home = Path(folder), Path(apart)
        _stage(stage, bundle)
        document = _bentofile(bundle, {"mlctl.digest": bundle.digest, **labels}, requirements)
        (stage / "bentofile.yaml").write_text(json.dumps(document))
        _run_bentoml(stage, home, bundle.digest[:12])
        _move_in(home, tag)
    return BuiltBento(tag, bundle.digest, find_bento(tag).path, reused=False)


def bento_tag(bundle: VerifiedBundle) -> str:
    """NAME:VERSION of the Bento of `bundle`."""
    return f"{bundle.manifest.name}:{bundle.digest[:12]}"


def pinned_requirements() -> list[str]:
    """`package==version` for everything a Bento needs, as installed here."""
    require_onnxruntime()
    names = [*REQUIREMENTS, *(name for name in RUNTIMES if installed_version(name) is not None)]
    pins = []
    for name in sorted(names):
        version = installed_version(name)
        if version is None:
            raise MlctlError(
                ErrorCode.RUNTIME_MISSING,
                f"package {name!r} is not installed",
                "Install it with the rest of what serving needs: `pip install 'mlctl[serve]'`.",
            )
        pins.append(f"{name}=={version}")
    return pins


def _present(tag: str) -> BentoInfo | None:
    try:
        return find_bento(tag)
    except MlctlError as error:
        if error.code is ErrorCode.BENTO_NOT_FOUND:
            return None
        raise


def _is_whole(bento: BentoInfo, digest: str) -> bool:
    """Whether `bento` still holds the bundle that was put there, and the code of today."""
    source = bento.path / "src"
    try:
        verify(source / MODEL_FOLDER, digest)
    except MlctlError:
        return False
    beside = digest_file(source / MODEL_FOLDER)
    if not beside.is_file() or beside.read_bytes() != digest.encode():
        return False
    return all(
        _same(file, source / file.relative_to(package.parent))
        for package in _packages()
        for file in _sources(package)
    )


def _same(ours: Path, theirs: Path) -> bool:
    return theirs.is_file() and filecmp.cmp(ours, theirs, shallow=False)


def _packages() -> list[Path]:
    return [Path(str(package.__file__)).parent for package in (bundle_package, services_package)]


def _sources(package: Path) -> Iterator[Path]:
    for pattern in _SOURCES:
        yield from package.rglob(pattern)


def _stage(stage: Path, bundle: VerifiedBundle) -> None:
    for package in _packages():
        for source in _sources(package):
            copy = stage / source.relative_to(package.parent)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
    model = stage / MODEL_FOLDER
    shutil.copytree(bundle.root, model)
    verify(model, bundle.digest)
    digest_file(model).write_text(bundle.digest)


def _bentofile(
    bundle: VerifiedBundle, labels: Mapping[str, str], requirements: list[str]
) -> dict[str, Any]:
    """The build options; JSON is YAML."""
    manifest = bundle.manifest
    return {
        "service": SERVICE,
        "name": manifest.name,
        "description": f"{manifest.name} from {manifest.source.uri}, {manifest.variant.recipe}",
        "labels": dict(labels),
        "include": ["services/", "bundle/", f"{MODEL_FOLDER}/", f"{MODEL_FOLDER}.digest"],
        "python": {"packages": requirements, "lock_packages": False},
    }


def _run_bentoml(stage: Path, home: Path, version: str) -> None:
    environment = {**os.environ, **bento_environment(), BENTO_HOME_VARIABLE: str(home)}
    command = [sys.executable, "-m", "bentoml", "build", "--version", version, str(stage)]
    done = subprocess.run(
        command, cwd=stage, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip()[-2000:]
        raise MlctlError(ErrorCode.INTERNAL, f"BentoML could not build the Bento: {words}")


def _move_in(home: Path, tag: str) -> None:
    """Move the Bento `tag` from the store `home` to ours; the one it replaces goes to `home`."""
    name, _, version = tag.partition(":")
    built, place = (store / "bentos" / name / version for store in (home, bento_home()))
    place.parent.mkdir(parents=True, exist_ok=True)
    old = home / "replaced"
    if place.exists():
        place.rename(old)
    try:
        built.rename(place)
    except OSError:
        if old.exists():
            old.rename(place)
        raise
    write_atomic(place.parent / "latest", version.encode())
