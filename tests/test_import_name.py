"""Installed, mlctl is one name: it hides no module of its users, and none of theirs hides it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from mlctl import Client
from mlctl.bento.packaging import build_bento
from tests.support.bundles import expected, make_bundle
from tests.support.command_line import Mlctl
from tests.support.serving import launch, running
from tests.test_architecture import PACKAGES, ROOT

pytestmark = pytest.mark.slow


def build(kind: str, source: Path, out: Path) -> Path:
    """Run setuptools as pip does, in `source`; return the sdist or wheel."""
    code = f"from setuptools import build_meta; build_meta.build_{kind}({str(out)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
    (made,) = out.iterdir()
    return made


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")
        }


def test_wheel__built_from_the_tree_or_its_sdist__holds_mlctl_alone(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignored)
    wheel = build("wheel", tree, tmp_path / "wheel")
    with tarfile.open(build("sdist", tree, tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert contents(build("wheel", unpacked, tmp_path / "second")) == contents(wheel)
    site = tmp_path / "site"
    install = ("install", "--quiet", "--no-deps", "--no-index", "--target", str(site), str(wheel))
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    assert {path.suffix or path.name for path in site.iterdir()} == {"mlctl", ".dist-info", "bin"}
    assert {path.name for path in (site / "mlctl").iterdir() if path.is_dir()} == {
        *PACKAGES, "__pycache__",
    } - {"mlctl"}  # fmt: skip
    # `-I` keeps the current folder and PYTHONPATH out.
    code = f"import sys; sys.path.insert(0, {str(site)!r}); from mlctl.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, "doctor", "--help"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "Usage:" in done.stdout


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    """A user's project with packages of all our names; one has what the evaluation imports."""
    project = tmp_path / "project"
    for name in PACKAGES:
        if name != "mlctl":
            (project / name).mkdir(parents=True)
            (project / name / "__init__.py").touch()
    (project / "services/features.py").write_text("WIDTH = 4\n")
    (project / "rows.py").write_text(
        "import numpy as np\n"
        "from services.features import WIDTH\n"
        "def evaluation():\n"
        "    rows = np.random.default_rng(1).standard_normal((64, WIDTH), dtype=np.float32)\n"
        "    yield {'x': rows}\n"
    )
    return project


def test_names__project_with_packages_of_ours__can_optimize_build_and_serve(
    crowded: Path, tmp_path: Path
) -> None:
    mlctl = Mlctl(tmp_path / "home", crowded)
    mlctl.home.mkdir()
    model = make_bundle(tmp_path / "bundle").root / "model.onnx"
    for command in (
        ("models", "import", str(model), "--name", "tiny"),
        ("optimize", "tiny", "--data", "rows:evaluation", "--recipes", "fp32"),
        ("build", "tiny"),
    ):
        done = mlctl.run_process(*command)
        assert done.returncode == 0, done.stderr
    (latest,) = (mlctl.home / "bentoml/bentos").glob("*/latest")
    bento = latest.parent / latest.read_text()
    server = launch(str(bento), tmp_path / "log", cwd=crowded, bento_home=mlctl.home / "bentoml")
    with running(server):
        rows = np.ones((2, 4), np.float32)
        with Client(server.url) as client:
            np.testing.assert_allclose(client.infer("tiny", {"x": rows})["y"], expected(rows))


def test_names__each_command_and_the_python_api__import_in_that_project(crowded: Path) -> None:
    code = (
        "import pkgutil, sys, importlib\n"
        "from mlctl import Client, ErrorCode, Goals, MlctlError, OptimizeOptions, RolloutSpec\n"
        "from mlctl import chain\n"
        "import mlctl.cli.commands as commands\n"
        "for each in pkgutil.iter_modules(commands.__path__):\n"
        "    importlib.import_module(f'{commands.__name__}.{each.name}')\n"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=crowded, capture_output=True, text=True, check=True
    )
    assert not {*done.stdout.split()} & ({*PACKAGES} - {"mlctl"})


def test_names__modules_of_a_bento_or_the_tree__are_loaded_once(tmp_path: Path) -> None:
    """From the root of the repository all packages can be found under two names."""
    bento = build_bento(make_bundle(tmp_path / "bundle"), {}, force=True)
    code = "import sys; from mlctl.services.service import service; print(*sys.modules)"
    for folder, variables in (
        (ROOT, {"MLCTL_BUNDLE": str(tmp_path / "bundle")}),
        (bento.path / "src", {}),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, env={**os.environ, **variables},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        found = {*done.stdout.split()}
        assert "mlctl.services.service" in found
        assert not found & ({*PACKAGES} - {"mlctl"})
