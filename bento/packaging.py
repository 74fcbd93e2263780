"""Build a Bento from verified bundles: our code, the bundles, pinned requirements.

The version is the start of the bundles' digest, so the same bundles have the same tag. A second
digest covers the content, so the same bundles under the same mlctl give the same bytes. BentoML
builds in a process of its own: it imports the service that it builds, and that import must see the
staged files and leave nothing behind in this process.
"""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlctl
from mlctl.bundle.verify import VerifiedBundle, verify
from mlctl.core.canonical import canonical_json
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import sha256_file, write_atomic
from mlctl.core.home import BENTO_HOME_VARIABLE, bento_environment, bento_home
from mlctl.services.layout.bento_layout import (
    MODEL_FOLDER,
    BentoContents,
    combine_bundles,
    read_contents,
)
from mlctl.services.layout.bento_store import (
    CONTENT_LABEL,
    DIGEST_LABEL,
    MODELS_LABEL,
    SERVER_LABEL,
    SERVER_VERSION,
    BentoInfo,
    find_bento,
)
from mlctl.services.model.requirements import RuntimeFlavor, pin_requirements

__all__ = ["MODEL_FOLDER", "BuiltBento", "bento_tag", "build_bento"]

SERVICE = "mlctl.services.service:service"
_OUTPUT_LINES = 20
_REASON = re.compile(r"[\w.]*(Error|Exception)\b")
_SOURCES = ("*.py", "*.proto", "*.binpb", "py.typed")
# What only commands use: they share it with the server's code, and no server or runner imports it.
_ONLY_COMMANDS = (
    "mlctl/bundle/interface.py",
    "mlctl/bundle/output_kinds.py",
    "mlctl/core/charts/",
    "mlctl/core/exposure.py",
    "mlctl/core/ports.py",
    "mlctl/core/quiet.py",
    "mlctl/core/text.py",
    "mlctl/services/batch/estimate.py",
    "mlctl/services/batch/spark.py",
    "mlctl/services/precomputed/manage.py",
    "mlctl/services/stream/tools.py",
)
# The part of the command line that starts the batch and stream runners.
_COMMAND_LINE = ("__init__.py", "options.py", "output.py", "progress.py", "runners/*.py")


@dataclass(frozen=True, slots=True)
class BuiltBento:
    """A Bento of one or several bundles; `reused` if the store already had it.

    `digest` is that of the bundle, or of all bundles together. `content_digest` covers every file
    and the requirements, and nothing that depends on the time or the machine of the build.
    """

    tag: str
    digest: str
    path: Path
    reused: bool
    content_digest: str


def build_bento(
    bundles: VerifiedBundle | BentoContents,
    labels: Mapping[str, str],
    *,
    force: bool = False,
    flavor: RuntimeFlavor | None = None,
) -> BuiltBento:
    """Build the Bento of `bundles`, or find it in the store; `force` always builds it.

    A Bento that was altered, or that holds the code of another mlctl, is built again; the old one
    stays in the store until the new one replaces it. RUNTIME_MISSING if a package that it needs is
    not installed here, because the versions are pinned to the installed ones. INTERNAL with the end
    of BentoML's output if BentoML fails.
    """
    packed = bundles if isinstance(bundles, BentoContents) else combine_bundles([bundles])
    tag = bento_tag(packed, flavor)
    requirements = pin_requirements(packed.bundles, flavor)
    content = _content_digest(packed, requirements)
    present = _present(tag)
    if present is not None and not force and _is_whole(present, packed, content):
        return BuiltBento(tag, packed.digest, present.path, reused=True, content_digest=content)
    own = {DIGEST_LABEL: packed.digest, CONTENT_LABEL: content, SERVER_LABEL: SERVER_VERSION}
    if packed.bento_manifest is not None:
        own[MODELS_LABEL] = packed.bento_manifest.label()
    if flavor is not None:
        own["mlctl.runtime"] = flavor.value
    with (
        tempfile.TemporaryDirectory(prefix="mlctl-bento-") as folder,
        # In the store's file system, so that the result can be renamed into the store.
        tempfile.TemporaryDirectory(prefix=".mlctl-build-", dir=bento_home()) as apart,
    ):
        stage, home = Path(folder), Path(apart)
        _stage(stage, packed)
        document = _bentofile(packed, {**labels, **own}, requirements)
        (stage / "bentofile.yaml").write_text(json.dumps(document))
        _run_bentoml(stage, home, tag.partition(":")[2])
        _move_in(home, tag)
    path = find_bento(tag).path
    return BuiltBento(tag, packed.digest, path, reused=False, content_digest=content)


def bento_tag(bundles: VerifiedBundle | BentoContents, flavor: RuntimeFlavor | None = None) -> str:
    """Return NAME:VERSION of the Bento of `bundles`; a requested flavor is part of the version."""
    packed = bundles if isinstance(bundles, BentoContents) else combine_bundles([bundles])
    suffix = "" if flavor is None else f"-{flavor.value}"
    return f"{packed.name}:{packed.digest[:12]}{suffix}"


def _present(tag: str) -> BentoInfo | None:
    try:
        return find_bento(tag)
    except MlctlError as error:
        if error.code is ErrorCode.BENTO_NOT_FOUND:
            return None
        raise


def _is_whole(bento: BentoInfo, packed: BentoContents, content: str) -> bool:
    """Return whether `bento` holds its bundles unaltered, and the code of this mlctl."""
    source = bento.path / "src"
    if bento.labels.get(CONTENT_LABEL) != content:
        return False
    try:
        read_contents(source)
    except (MlctlError, OSError):
        return False
    notes = packed.digest_files().items()
    if any(not _has(source / name, text) for name, text in notes):
        return False
    return all(_same(file, source / _name_in_bento(file)) for file in bento_sources())


def _has(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content


def _same(ours: Path, theirs: Path) -> bool:
    return theirs.is_file() and filecmp.cmp(ours, theirs, shallow=False)


def bento_sources() -> Iterator[Path]:
    """Yield every file of our code that a Bento contains: the server and the runners."""
    home = _home()
    yield home / "__init__.py"
    for package in ("bundle", "core", "services"):
        for pattern in _SOURCES:
            for path in (home / package).rglob(pattern):
                if not _name_in_bento(path).startswith(_ONLY_COMMANDS):
                    yield path
    for pattern in _COMMAND_LINE:
        yield from home.glob(f"cli/{pattern}")


def _home() -> Path:
    return Path(str(mlctl.__file__)).parent


def _name_in_bento(source: Path) -> str:
    return source.relative_to(_home().parent).as_posix()


def _content_digest(packed: BentoContents, requirements: Sequence[str]) -> str:
    """Return the hex sha256 over the names and contents of all files and the requirements."""
    files = {_name_in_bento(file): sha256_file(file) for file in bento_sources()}
    models = {folder: bundle.digest for folder, bundle in packed.folders()}
    document = {
        "files": files,
        "models": models,
        "notes": {name: text.decode() for name, text in packed.digest_files().items()},
        "requirements": list(requirements),
    }
    return hashlib.sha256(canonical_json(document)).hexdigest()


def _stage(stage: Path, packed: BentoContents) -> None:
    for source in bento_sources():
        copy = stage / _name_in_bento(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
    for folder, bundle in packed.folders():
        shutil.copytree(bundle.root, stage / folder)
        verify(stage / folder, bundle.digest)
    for name, text in packed.digest_files().items():
        (stage / name).write_bytes(text)


def _bentofile(
    packed: BentoContents, labels: Mapping[str, str], requirements: Sequence[str]
) -> dict[str, Any]:
    """Return BentoML's build options; JSON is YAML."""
    manifests = [bundle.manifest for bundle in packed.bundles]
    origins = [f"{each.name} from {each.source.uri}, {each.variant.recipe}" for each in manifests]
    folders = {folder.partition("/")[0] for folder, _ in packed.folders()}
    return {
        "service": SERVICE,
        "name": packed.name,
        "description": "; ".join(origins),
        "labels": dict(sorted(labels.items())),
        "include": [
            "mlctl/",
            *(f"{one}/" for one in sorted(folders)),
            *packed.digest_files(),
        ],
        "python": {"packages": list(requirements), "lock_packages": False},
    }


def _run_bentoml(stage: Path, home: Path, version: str) -> None:
    # The build imports the service. Signatures are required where it serves, not here.
    overrides = {"MLCTL_REQUIRE_SIGNATURE": "", BENTO_HOME_VARIABLE: str(home)}
    environment = {**os.environ, **bento_environment(), **overrides}
    command = [sys.executable, "-m", "bentoml", "build", "--version", version, str(stage)]
    done = subprocess.run(
        command, cwd=stage, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        output = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        # BentoML may print advice after the error.
        reason = next((line for line in reversed(output) if _REASON.match(line)), output[-1])
        raise MlctlError(
            ErrorCode.INTERNAL,
            f"BentoML could not build the Bento: {reason}",
            "\n".join(["The end of its output:", *output[-_OUTPUT_LINES:]]),
        )


def _move_in(home: Path, tag: str) -> None:
    """Move the Bento `tag` from the store `home` to ours; a replaced one goes to `home`."""
    name, _, version = tag.partition(":")
    built, location = (store / "bentos" / name / version for store in (home, bento_home()))
    location.parent.mkdir(parents=True, exist_ok=True)
    old = home / "replaced"
    if location.exists():
        location.rename(old)
    try:
        built.rename(location)
    except OSError:
        if old.exists():
            old.rename(location)
        raise
    write_atomic(location.parent / "latest", version.encode())
