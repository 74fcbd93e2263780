"""Check a Bento's image without an engine: `make container-check`.

It resolves the hashes with the package index, runs the steps of the Containerfile in a fresh
virtual environment outside the project, and runs the image's three modes as another user from
read-only files: it serves, scores a table, and scores a stream. With BASE=IMAGE (which buildah has
or can fetch), buildah builds the image as well.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mlctl.bento.packaging import build_bento
from tests.support.bundles import expected, make_bundle
from tests.support.image import open_folder, run_image, served, tree_of, unpack_context

ROWS = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)
PYTHON = os.environ.get("CHECK_PYTHON", "python3.11")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="mlctl-container-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        os.environ["MLCTL_HOME"] = str(folder / "home")
        os.environ.pop("BENTOML_HOME", None)
        tag = build_bento(make_bundle(folder / "bundle"), {}).tag
        context = folder / "context"
        given = ("--with", "batch,stream", "--out", str(context))
        _mlctl("containerize", tag, "--engine", "none", *given)
        python = _install(context, folder / "venv")
        place = unpack_context(context, folder / "root")
        before = tree_of(place), tree_of(folder / "venv")
        _serve(context, place, python, folder / "serve")
        _score(context, place, python, open_folder(folder / "score"))
        assert (tree_of(place), tree_of(folder / "venv")) == before, "something wrote to its files"
        print("nothing but its /tmp was written")
        if base := os.environ.get("BASE"):
            _mlctl(
                "containerize",
                tag,
                "--engine",
                "buildah",
                "--base",
                base,
                "--with",
                "batch,stream",
                "--lock",
                str(context / "requirements.lock"),
            )


def _mlctl(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "mlctl.cli.main", *arguments], check=True)


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


def _serve(context: Path, place: Path, python: Path, folder: Path) -> None:
    with served(context, place, python, folder) as server:
        tensor = {"name": "x", "shape": [2, 4], "datatype": "FP32", "data": ROWS.ravel().tolist()}
        url = f"http://127.0.0.1:{server.port}/v2/models/tiny/infer"
        answer = httpx.post(url, json={"inputs": [tensor]}).raise_for_status().json()
        print(f"ready as user {server.user}; it answers {answer['outputs'][0]['data']}")
    _check(answer["outputs"][0]["data"])


def _score(context: Path, place: Path, python: Path, scratch: Path) -> None:
    rows, messages = scratch / "rows.parquet", scratch / "messages.jsonl"
    pq.write_table(pa.table({"x": ROWS.tolist()}), rows)
    messages.write_text("".join(f"{json.dumps({'x': row})}\n" for row in ROWS.tolist()))
    out, answers = scratch / "scores", scratch / "answers.jsonl"
    for mode, given in (
        ("batch", (str(rows), "--out", str(out))),
        ("stream", (str(messages), "--out", str(answers), "--until-empty")),
    ):
        done = run_image(context, place, python, scratch, mode, "--in", *given)
        assert done.returncode == 0, done.stderr
        print(f"{mode}: {(done.stdout or done.stderr).splitlines()[-1]}")
    (part,) = out.glob("*.parquet")
    _check([row for each in pq.read_table(part).column("y").to_pylist() for row in each])
    _check([row for line in answers.read_text().splitlines() for row in json.loads(line)["y"]])


def _check(answers: list[float]) -> None:
    np.testing.assert_allclose(answers, expected(ROWS).ravel(), rtol=1e-6)


if __name__ == "__main__":
    main()
