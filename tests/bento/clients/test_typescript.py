"""A TypeScript client from the OpenAPI document, by the packages that docs/clients.md names."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from mlctl.bento.clients.languages import openapi_files, write_files
from mlctl.bento.clients.source import find_source
from mlctl.bento.packaging import BuiltBento
from tests.support.serving import Server

pytestmark = pytest.mark.slow
HERE = Path(__file__).with_name("typescript")
# The rest of the suite must not wait for a network.
_INSTALL_SECONDS = 30


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def packages() -> Path:
    """The folder of the installed packages, the same for all runs; skips without npm."""
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    lock = (HERE / "package-lock.json").read_bytes()
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlctl-tests"
    kept = caches / f"typescript-{hashlib.sha256(lock).hexdigest()[:12]}"
    if not kept.exists():
        _install(kept)
    return kept / "node_modules"


def _install(kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as name:
        folder = Path(name) / "new"
        folder.mkdir()
        for file in ("package.json", "package-lock.json"):
            shutil.copy(HERE / file, folder)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        try:
            subprocess.run(
                command, check=True, cwd=folder, capture_output=True, timeout=_INSTALL_SECONDS
            )
        except subprocess.SubprocessError as error:
            pytest.skip(f"npm does not install packages here: {error}")
        folder.rename(kept)


def test_openapi__typescript_client_made_of_it__compiles_and_calls_a_server(
    packages: Path,
    server: Server,
    built: BuiltBento,
    store_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BENTOML_HOME", str(store_home))
    write_files(tmp_path / "api", openapi_files(find_source(built.tag)))
    (tmp_path / "node_modules").symlink_to(packages)
    for file in ("calls.ts", "tsconfig.json", "package.json"):
        shutil.copy(HERE / file, tmp_path)
    tools = tmp_path / "node_modules" / ".bin"
    run(tmp_path, str(tools / "openapi-typescript"), "api/openapi.json", "-o", "tiny.ts")
    run(tmp_path, str(tools / "tsc"), "--project", ".")
    printed = run(tmp_path, "node", "dist/calls.js", server.url, built.digest).splitlines()
    assert printed == ["y 2,4 6,6,6,6,6,6,6,6 true", "400 invalid_input"]
