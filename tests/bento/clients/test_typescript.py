"""The generated TypeScript package: reproducible, strictly compiled, and calling servers."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mlctl.bento.clients.languages import typescript_files, write_files
from mlctl.bento.clients.source import find_source
from mlctl.bento.packaging import BuiltBento
from mlctl.services.online.openapi.model import ApiModel, describe
from mlctl.services.protocol.codec import V2Codec
from tests.bento.clients.models import DIGEST, every_datatype, odd
from tests.support.serving import Server

pytestmark = pytest.mark.slow
HERE = Path(__file__).with_name("typescript")
EVERY = describe("every", DIGEST, every_datatype())
# The rest of the suite must not wait for a network.
_INSTALL_SECONDS = 15


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def compiler() -> Path:
    """The TypeScript compiler, installed once for all runs; skips without npm or a network."""
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    lock = (HERE / "package-lock.json").read_bytes()
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlctl-tests"
    kept = caches / f"typescript-{hashlib.sha256(lock).hexdigest()[:12]}"
    program = kept / "node_modules" / "typescript" / "bin" / "tsc"
    if not program.exists():
        _install(kept)
    return program


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
            pytest.skip(f"npm does not install TypeScript here: {error}")
        shutil.rmtree(kept, ignore_errors=True)
        folder.rename(kept)


def written(model: ApiModel, folder: Path) -> None:
    write_files(folder, typescript_files(model))


@pytest.fixture(scope="module")
def compiled(
    compiler: Path,
    built: BuiltBento,
    store_home: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The packages of three models, compiled in one run, which takes as long as one model."""
    folder = tmp_path_factory.mktemp("typescript")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENTOML_HOME", str(store_home))
        tiny = find_source(built.tag)
    for name, model in (("tiny", tiny), ("odd", odd()), ("every", EVERY)):
        written(model, folder / name)
    shutil.copy(HERE / "types.ts", folder)
    (folder / "package.json").write_text('{ "type": "module" }')
    options = {
        "extends": "./tiny/tsconfig.json",
        "compilerOptions": {"rootDir": ".", "outDir": "dist", "declaration": False},
        "include": ["*/src", "types.ts"],
    }
    (folder / "tsconfig.json").write_text(json.dumps(options))
    run(folder, "node", str(compiler), "--project", ".")
    return folder


@pytest.fixture
def echo() -> Iterator[str]:
    """The URL of a server that echoes the tensors of requests, with the server's codec."""
    codec = V2Codec(EVERY.name, EVERY.digest, every_datatype())

    class Echo(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            length = self.headers.get("inference-header-content-length")
            request = codec.decode(body, None if length is None else int(length))
            content, header_length = codec.encode(request, request.inputs)
            self.send_response(200)
            if header_length is not None:
                self.send_header("inference-header-content-length", str(header_length))
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_typescript_files__same_model_twice__are_the_same() -> None:
    first, second = (typescript_files(odd()) for _ in range(2))
    assert first == second
    for name, content in first.items():
        assert isinstance(content, str)
        if name.endswith(".ts"):
            assert odd().digest in content.splitlines()[0]
    package = json.loads(first["package.json"])
    assert "dependencies" not in package
    assert package["name"] == f"{odd().identifier.replace('_', '-')}-client"


def test_typescript_packages__compiled__call_servers(
    compiled: Path, echo: str, server: Server, built: BuiltBento
) -> None:
    dist = str(compiled / "dist")
    checks = str(HERE / "checks.mjs")
    output = run(compiled, "node", checks, dist, echo, server.url, built.digest)
    assert output == "all checks passed\n"
