"""Check a Bento's image without an engine: `make container-check`.

It resolves the hashes with the package index, runs the steps of the Containerfile in a fresh
virtual environment outside the project, and serves as another user from read-only files. With
BASE=IMAGE (which buildah has or can fetch), buildah builds the image as well.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import numpy as np

from bento.packaging import build_bento
from tests.support.bundles import expected, make_bundle
from tests.support.image import served, tree_of, unpack_context

PYTHON = os.environ.get("CHECK_PYTHON", "python3.11")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="mlctl-container-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        os.environ["MLCTL_HOME"] = str(folder / "home")
        os.environ.pop("BENTOML_HOME", None)
        tag = build_bento(make_bundle(folder / "bundle"), {}).tag
        context = folder / "context"
        _mlctl("containerize", tag, "--engine", "none", "--out", str(context))
        python = _install(context, folder / "venv")
        _serve(context, python, folder)
        if base := os.environ.get("BASE"):
            _mlctl(
                "containerize",
                tag,
                "--engine",
                "buildah",
                "--base",
                base,
                "--lock",
                str(context / "requirements.lock"),
            )


def _mlctl(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "cli.main", *arguments], check=True)


def _install(context: Path, venv: Path) -> Path:
    """Run the commands of the first stage with other paths."""
    text = (context / "Containerfile").read_text().replace("\\\n", " ")
    command = next(line for line in text.splitlines() if line.startswith("RUN python -m venv"))
    words = command.removeprefix("RUN ").replace("/opt/venv", str(venv))
    words = words.replace("/tmp/requirements.lock", str(context / "requirements.lock"))
    bin_folder = venv.parent / "bin"
    bin_folder.mkdir()
    (bin_folder / "python").symlink_to(shutil.which(PYTHON) or PYTHON)
    path = f"{bin_folder}:{os.environ['PATH']}"
    print(words, flush=True)
    subprocess.run(["sh", "-euc", words], check=True, env={**os.environ, "PATH": path})
    return venv / "bin" / "python"


def _serve(context: Path, python: Path, folder: Path) -> None:
    place = unpack_context(context, folder / "root")
    before = tree_of(place), tree_of(folder / "venv")
    x = np.array([[1, 2, 3, 4]], np.float32)
    with served(context, place, python, folder / "scratch") as server:
        tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": x.ravel().tolist()}
        url = f"http://127.0.0.1:{server.port}/v2/models/tiny/infer"
        answer = httpx.post(url, json={"inputs": [tensor]}).raise_for_status().json()
        print(f"ready as user {server.user}; it answers {answer['outputs'][0]['data']}")
    np.testing.assert_allclose(answer["outputs"][0]["data"], expected(x).ravel(), rtol=1e-6)
    assert (tree_of(place), tree_of(folder / "venv")) == before, "the server wrote to its files"
    print("nothing but its /tmp was written")


if __name__ == "__main__":
    main()
