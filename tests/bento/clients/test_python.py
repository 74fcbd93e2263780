"""The generated Python package: reproducible, strictly typed, and calling a real server."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlctl.bento.clients.languages import python_files, write_files
from mlctl.bento.clients.source import find_source
from mlctl.bento.packaging import BuiltBento
from mlctl.services.online.openapi.model import ApiModel
from tests.bento.clients.models import odd
from tests.support.serving import Server

pytestmark = pytest.mark.slow

FAULTS = """
import asyncio

import numpy as np
import pytest
from tiny_client import *
from tiny_client.grpc import AsyncGrpcClient, GrpcClient

def check(url, target):
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    large = Request(x=np.zeros((10_000, 4), np.float32))
    for client in (Client(url), GrpcClient(target)):
        with client:
            answer = client.infer(Request(x=x), request_id="mine")
            np.testing.assert_allclose(answer.y, 2 * x + x.sum(1, keepdims=True))
            assert answer.meta.model_digest == DIGEST == client.served_digest()
            assert answer.meta.request_id == "mine"
            with pytest.raises(TooLargeError) as caught:
                client.infer(large)
            assert (caught.value.code, bool(caught.value.hint)) == ("payload_too_large", True)
            with pytest.raises(DeadlineError):
                client.infer(Request(x=x), timeout=1e-6)
    for client in (Client(url), GrpcClient("127.0.0.1:9", timeout=1.0)):
        with pytest.raises(ModelError):
            client.infer(Request(x=x[:, :3]))
    with pytest.raises(UnavailableError):
        Client("http://127.0.0.1:9", timeout=1.0, retry=Retry(attempts=2)).infer(Request(x=x))
    with pytest.raises(UnavailableError):
        GrpcClient("127.0.0.1:9", retry=Retry(attempts=2)).infer(Request(x=x))
    assert Client(url).ready() and not Client("http://127.0.0.1:9").ready()
    asyncio.run(check_async(url, target, x))

async def check_async(url, target, x):
    async with AsyncClient(url) as http, AsyncGrpcClient(target) as grpc:
        one, other = await asyncio.gather(http.infer(Request(x=x)), grpc.infer(Request(x=x)))
        np.testing.assert_array_equal(one.y, other.y)
        assert await http.ready()
        assert await http.served_digest() == await grpc.served_digest() == DIGEST
        for client in (http, grpc):
            with pytest.raises(DeadlineError):
                await client.infer(Request(x=x), timeout=1e-6)

import sys
check(*sys.argv[1:])
"""


def run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": "installed", "PYTHONDONTWRITEBYTECODE": "1"}
    command = (sys.executable, *command)
    done = subprocess.run(
        command, check=False, cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def written(model: ApiModel, folder: Path) -> Path:
    write_files(folder, python_files(model))
    return folder


def test_python_files__same_model_twice__are_the_same() -> None:
    first, second = (python_files(odd()) for _ in range(2))
    assert first == second
    for name, content in first.items():
        if name.endswith(".py"):
            assert isinstance(content, str)
            assert odd().digest in content.splitlines()[0]
            ast.parse(content)


def test_python_files__hard_names_and_every_datatype__are_formatted_and_strictly_typed(
    tmp_path: Path,
) -> None:
    folder = written(odd(), tmp_path / "client")
    run(folder, "-m", "ruff", "format", "--check", "--no-cache", ".")
    run(folder, "-m", "ruff", "check", "--no-cache", ".")
    cache = Path(__file__).parents[3] / ".mypy_cache"
    run(folder, "-m", "mypy", "--cache-dir", str(cache / "clients"))
    package = f"{odd().identifier}_client"
    run(folder, "-c", f"from {package} import grpc; from {package} import *")


def test_python_package__installed__calls_a_server_over_http_and_grpc(
    server: Server, built: BuiltBento, store_home: Path, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENTOML_HOME", str(store_home))
        folder = written(find_source(built.tag), tmp_path / "client")
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--quiet"]
    run(tmp_path, "-m", "pip", "install", *options, "--target", "installed", str(folder))
    target = f"127.0.0.1:{server.grpc_port}"
    example = (folder / "README.md").read_text().split("```")[1].removeprefix("python")
    (tmp_path / "example.py").write_text(example.replace("http://localhost:3000", server.url))
    assert built.digest in run(tmp_path, "example.py")
    (tmp_path / "faults.py").write_text(FAULTS)
    run(tmp_path, "faults.py", server.url, target)
