"""A build context: complete, reproducible, and its server runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from mlctl.bento.containers.container import (
    CONTAINERFILE,
    LOCK_NAME,
    SBOM_NAME,
    Engine,
    build_command,
    build_image,
    default_base,
    write_context,
)
from mlctl.bento.containers.lock import Lock, Package, Platform
from mlctl.bento.containers.resolve import lock_for, requirements_of
from mlctl.bento.packaging import BuiltBento
from mlctl.bundle.manifest import MODEL_NAME
from mlctl.bundle.verify import VerifiedBundle
from mlctl.cli.main import cli
from mlctl.core.errors import ERROR_TABLE, ErrorCode, MlctlError
from mlctl.services.layout.bento_store import BentoInfo, find_bento
from tests.support.bundles import expected
from tests.support.image import run_image, served, tree_of, unpack_context

Completed = subprocess.CompletedProcess[str]

pytestmark = pytest.mark.slow


@pytest.fixture
def bento(built: BuiltBento, store_home: Path, monkeypatch: pytest.MonkeyPatch) -> BentoInfo:
    monkeypatch.setenv("BENTOML_HOME", str(store_home))
    return find_bento(built.tag)


@pytest.fixture
def lock(bento: BentoInfo) -> Lock:
    """A lock of the packages that the Bento names, with made-up hashes."""
    pairs = sorted(line.split("==") for line in requirements_of(bento))
    return Lock(tuple(Package(name, version, ("ab" * 32,)) for name, version in pairs))


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that another user may enter; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="mlctl-image-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_write_context__twice__gives_the_same_bytes_and_replaces_the_folder(
    bento: BentoInfo, lock: Lock, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two, one):
        context = write_context(bento, lock, Platform.AMD64, default_base(), folder)
    assert context.digest == bento.labels["mlctl.digest"]
    assert contents(one) == contents(two)
    assert tree_of(one) == tree_of(two)
    assert (one / "bento" / "src" / "model" / MODEL_NAME).is_file()
    assert not (one / "bento" / "env").exists(), "BentoML's own Dockerfile is not ours"
    assert (one / ".dockerignore").read_text() == (one / ".containerignore").read_text()


def test_write_context__labels__carry_the_chain_of_digests(
    bento: BentoInfo, lock: Lock, shared_bundle: VerifiedBundle, tmp_path: Path
) -> None:
    base = "registry.example/python@sha256:" + "1" * 64
    write_context(bento, lock, Platform.AMD64, base, tmp_path / "context")
    text = (tmp_path / "context" / CONTAINERFILE).read_text()
    digest = shared_bundle.digest
    assert f'LABEL "mlctl.models.tiny.digest"="{digest}"' in text
    assert f'LABEL "org.opencontainers.image.revision"="{digest}"' in text
    assert 'LABEL "mlctl.models.tiny.source"="models:/tiny/1"' in text
    assert f'LABEL "org.opencontainers.image.base.digest"="sha256:{"1" * 64}"' in text


def test_write_context__folder_with_other_files__is_left_alone(
    bento: BentoInfo, lock: Lock, tmp_path: Path
) -> None:
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(MlctlError) as caught:
        write_context(bento, lock, Platform.AMD64, default_base(), tmp_path)
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert contents(tmp_path) == {"letter": b"dear"}


def test_write_context__altered_bento__is_rejected(
    bento: BentoInfo, lock: Lock, tmp_path: Path
) -> None:
    copy = tmp_path / "bento"
    shutil.copytree(bento.path, copy)
    with (copy / "src" / "model" / MODEL_NAME).open("ab") as file:
        file.write(b"x")
    altered = BentoInfo(bento.tag, copy, bento.labels)
    with pytest.raises(MlctlError) as caught:
        write_context(altered, lock, Platform.AMD64, default_base(), tmp_path / "context")
    assert caught.value.code is ErrorCode.FILE_ALTERED
    assert not (tmp_path / "context").exists()


def test_lock_for__file_without_a_requirement__is_rejected(
    bento: BentoInfo, lock: Lock, tmp_path: Path
) -> None:
    path = tmp_path / "requirements.lock"
    path.write_text(lock.text())
    assert lock_for(bento, Platform.AMD64, path).versions() == lock.versions()
    path.write_text(Lock(lock.packages[1:]).text())
    with pytest.raises(MlctlError, match=f"the image needs {lock.packages[0].name}==.*has none"):
        lock_for(bento, Platform.AMD64, path)


def test_image__running_server__writes_only_to_tmp(
    bento: BentoInfo, lock: Lock, shared_folder: Path
) -> None:
    """Runs as the image's user where possible; `make container-check` also installs the lock."""
    context = write_context(bento, lock, Platform.AMD64, default_base(), shared_folder / "context")
    place = unpack_context(context.folder, shared_folder / "root")
    before = tree_of(place)
    x = np.array([[1, 2, 3, 4]], np.float32)
    python = Path(sys.executable)
    with served(context.folder, place, python, shared_folder / "scratch") as server:
        tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": x.ravel().tolist()}
        url = f"http://127.0.0.1:{server.port}/v2/models/tiny"
        answer = httpx.post(f"{url}/infer", json={"inputs": [tensor]}).raise_for_status().json()
        version = httpx.get(url).json()["versions"]
        # What SageMaker asks for, on another port.
        base, row = f"http://127.0.0.1:{server.port}", ",".join(map(str, x[0]))
        ping = httpx.get(f"{base}/ping")
        invoked = httpx.post(
            f"{base}/invocations", content=row, headers={"content-type": "text/csv"}
        )
    np.testing.assert_allclose(answer["outputs"][0]["data"], expected(x).ravel(), rtol=1e-6)
    assert version == [context.digest]
    assert ping.status_code == 200
    np.testing.assert_allclose(
        [float(value) for value in invoked.text.split(",")], expected(x).ravel(), rtol=1e-6
    )
    assert tree_of(place) == before


@pytest.fixture
def image(bento: BentoInfo, lock: Lock, shared_folder: Path) -> Callable[..., Completed]:
    """`docker run IMAGE ARGUMENTS`; the packages are those of this environment."""
    context = write_context(bento, lock, Platform.AMD64, default_base(), shared_folder / "context")
    place = unpack_context(context.folder, shared_folder / "root")
    return partial(run_image, context.folder, place, Path(sys.executable), shared_folder / "tmp")


def test_image__batch__scores_with_the_model_of_the_image(
    image: Callable[..., Completed], bento: BentoInfo, shared_folder: Path
) -> None:
    rows, out = shared_folder / "rows.jsonl", shared_folder / "tmp" / "scores"
    rows.write_text('{"id": 7, "x": [1, 2, 3, 4]}\n')
    done = image("batch", "--in", str(rows), "--out", str(out), "--keep", "id", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["event"] == "summary"
    (part,) = out.glob("*.parquet")
    (answer,) = pq.read_table(part).to_pylist()
    assert answer["id"] == 7
    np.testing.assert_allclose([answer["y"]], expected(np.array([[1, 2, 3, 4]], np.float32)))
    # The same runner on the same Bento: the job is finished already.
    again = CliRunner().invoke(
        cli, ["batch", "run", bento.tag, "--in", str(rows), "--out", str(out), "--keep", "id"]
    )
    assert again.exit_code == 0, again.output
    assert "Nothing to do" in again.output


def test_image__stream__scores_with_the_model_of_the_image(
    image: Callable[..., Completed], shared_folder: Path
) -> None:
    messages, answers = shared_folder / "in.jsonl", shared_folder / "tmp" / "out.jsonl"
    messages.write_text('{"x": [1, 2, 3, 4]}\n')
    answers.parent.mkdir()
    answers.parent.chmod(0o777)
    given = ("--in", str(messages), "--out", str(answers), "--until-empty")
    done = image("stream", *given, "--model", "tiny")
    assert done.returncode == 0, done.stderr
    (answer,) = [json.loads(line) for line in answers.read_text().splitlines()]
    np.testing.assert_allclose([answer["y"]], expected(np.array([[1, 2, 3, 4]], np.float32)))
    other = image("stream", *given, "--model", "other")
    assert other.returncode == ERROR_TABLE[ErrorCode.MODEL_NOT_FOUND].exit_code
    assert "it has tiny" in other.stderr


def test_image__wrong_option__is_reported_as_by_mlctl(image: Callable[..., Completed]) -> None:
    done = image("batch", "--in", "rows.parquet", "--json")
    ours = CliRunner().invoke(cli, ["batch", "run", "tiny", "--in", "rows.parquet", "--json"])
    assert done.returncode == ours.exit_code == 2
    error = json.loads(done.stdout)["error"]
    assert error["message"] == json.loads(ours.stdout)["error"]["message"]
    assert error["hint"] == "`docker run IMAGE batch --help` shows the options."


def test_image__batch_without_its_packages__hint_is_the_command_that_adds_them(
    image: Callable[..., Completed], bento: BentoInfo, shared_folder: Path
) -> None:
    hidden = shared_folder / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['pyarrow'] = None\n")
    rows = shared_folder / "rows.jsonl"
    rows.write_text('{"x": [1, 2, 3, 4]}\n')
    done = image("batch", "--in", str(rows), "--out", "/tmp/scores", python_path=hidden)
    assert done.returncode == ERROR_TABLE[ErrorCode.RUNTIME_MISSING].exit_code, done.stderr
    assert f"mlctl containerize {bento.tag} --with batch" in done.stderr


def test_containerize_and_sbom__same_lock_file__write_the_same(
    bento: BentoInfo, lock: Lock, tmp_path: Path
) -> None:
    path, folder, file = (tmp_path / name for name in ("lock", "context", "sbom.json"))
    path.write_text(lock.text())
    options = ["--lock", str(path), "--platform", "linux/arm64"]
    run = CliRunner().invoke
    done = run(cli, ["containerize", bento.tag, *options, "--engine", "none", "--out", str(folder)])
    assert done.exit_code == 0, done.output
    assert (folder / LOCK_NAME).read_text() == lock.text()
    assert run(cli, ["sbom", bento.tag, *options, "--out", str(file)]).exit_code == 0
    assert file.read_bytes() == (folder / SBOM_NAME).read_bytes()
    assert run(cli, ["sbom", bento.tag, *options]).stdout_bytes == file.read_bytes()
    wrong = run(cli, ["containerize", bento.tag, *options, "--base", "a b", "--json"])
    assert wrong.exit_code == 2
    assert "not the name of an image" in json.loads(wrong.stdout)["error"]["message"]


@pytest.mark.parametrize("engine", Engine)
def test_build_command__each_engine__builds_an_image_with_a_health_check(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@index.example/simple")
    command = build_command(engine, tmp_path, "shop:1", Platform.ARM64)
    assert command[0] == engine
    assert command[-1] == str(tmp_path)
    assert command[command.index("--platform") :][:2] == ["--platform", "linux/arm64"]
    assert "PIP_INDEX_URL" in command
    assert "secret" not in " ".join(command), "other users see a command's arguments"
    assert ("docker" in command[1:]) == (engine is not Engine.DOCKER), "--format docker"


def test_build_image__engine_not_installed__is_reported(
    bento: BentoInfo, lock: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = write_context(bento, lock, Platform.AMD64, default_base(), tmp_path / "context")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MlctlError) as caught:
        build_image(Engine.PODMAN, context, "shop:1", Platform.AMD64)
    assert caught.value.code is ErrorCode.RUNTIME_MISSING


def test_buildah__context_without_run_steps__builds_the_configuration(
    bento: BentoInfo, lock: Lock, tmp_path: Path
) -> None:
    """Without RUN steps, because the base has no Python."""
    if shutil.which("buildah") is None:
        pytest.skip("buildah is not installed")
    context = write_context(bento, lock, Platform.AMD64, "scratch", tmp_path / "context")
    text = (context.folder / CONTAINERFILE).read_text()
    without_steps = "\n".join(
        line for line in _steps(text) if not line.startswith(("RUN", "COPY --from"))
    )
    (context.folder / CONTAINERFILE).write_text(without_steps)
    storage = ["--root", str(tmp_path / "storage"), "--runroot", str(tmp_path / "run")]
    buildah = ["buildah", "--storage-driver", "vfs", *storage]
    file = str(context.folder / CONTAINERFILE)
    options = ["--isolation", "chroot", "--format", "docker", "--tag", "shop:1", "--file", file]
    done = subprocess.run(
        [*buildah, "bud", *options, str(context.folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "permitted" in done.stderr:
        pytest.skip(f"buildah may not build here: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    shown = subprocess.run(
        [*buildah, "inspect", "--type", "image", "shop:1"],
        capture_output=True,
        text=True,
        check=True,
    )
    config = json.loads(shown.stdout)["Docker"]["config"]
    assert config["User"] == "65532:65532"
    assert config["Labels"]["mlctl.digest"] == context.digest
    assert config["Labels"]["mlctl.models.tiny.recipe"] == "fp32"
    assert set(config["ExposedPorts"]) == {"3000/tcp", "3001/tcp"}
    assert config["Healthcheck"]["Test"][-1] == "/srv/health.py"


def _steps(text: str) -> list[str]:
    """The instructions of a Containerfile, each on one line."""
    return text.replace("\\\n", " ").splitlines()
