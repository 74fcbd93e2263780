import shutil
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from mlctl.bento import packaging
from mlctl.bento.packaging import BuiltBento, bento_tag, build_bento
from mlctl.bundle.verify import VerifiedBundle, verify
from mlctl.core.errors import ERROR_TABLE, ErrorCode, MlctlError
from mlctl.core.home import bento_home
from mlctl.services.layout.bento_store import find_bento
from mlctl.services.model.requirements import RuntimeFlavor
from mlctl.services.online.server.service_bundle import find_bundles
from mlctl.services.online.settings import ServerSettings
from tests.support.serving import launch, stop
from tests.support.serving_fixtures import LABELS
from tests.support.wait import PATIENCE_SECONDS

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _shared_store(store_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENTOML_HOME", str(store_home))


def test_build_bento__bundle__names_the_tag_and_labels(
    built: BuiltBento, shared_bundle: VerifiedBundle
) -> None:
    assert built.tag == f"tiny:{shared_bundle.digest[:12]}" == bento_tag(shared_bundle)
    assert built.digest == shared_bundle.digest
    labels = find_bento(built.tag).labels
    assert labels == {
        "mlctl.digest": built.digest,
        "mlctl.content": built.content_digest,
        "mlctl.server": "2",
        **LABELS,
    }


def test_build_bento__content__is_the_bundle_and_our_code(built: BuiltBento) -> None:
    source = built.path / "src"
    assert verify(source / "model").digest == built.digest
    assert (source / "mlctl/services/protocol/v2.binpb").is_file()
    assert (source / "mlctl/services/model/tensorrt/__init__.py").is_file()
    assert (source / "mlctl/services/batch/job.py").is_file()
    assert (source / "mlctl/services/stream/engine.py").is_file()
    assert {path.name for path in (source / "mlctl/cli").iterdir()} == {
        "__init__.py", "options.py", "output.py", "progress.py", "runners",
    }  # fmt: skip
    assert {path.name for path in source.iterdir()} <= {
        "bentofile.yaml", "mlctl", "model", "model.digest", "README.md",
    }  # fmt: skip
    requirements = (built.path / "env" / "python" / "requirements.txt").read_text()
    assert "onnxruntime==" in requirements
    assert "bentoml==" in requirements
    assert "torch" not in requirements
    assert "mlflow" not in requirements


def test_build_bento__same_bundle__is_reused(
    built: BuiltBento, shared_bundle: VerifiedBundle
) -> None:
    again = build_bento(shared_bundle, {})
    assert again.reused
    assert again.path == built.path


@pytest.mark.parametrize(
    "name", ["model/model.onnx", "model.digest", "mlctl/services/model/scorer.py"]
)
def test_build_bento__altered_bento__is_built_again_with_the_same_bytes(
    built: BuiltBento, shared_bundle: VerifiedBundle, name: str
) -> None:
    path, before = built.path / "src" / name, files_of(built.path)
    path.write_bytes(before[f"src/{name}"][::-1])
    repaired = build_bento(shared_bundle, LABELS)
    assert not repaired.reused
    assert repaired.content_digest == built.content_digest
    # BentoML notes when it built; every other byte of the second build is the first one's.
    again = files_of(repaired.path)
    then, now = (yaml.safe_load(each.pop("bento.yaml")) for each in (before, again))
    assert again == before
    assert {**now, "creation_time": then["creation_time"]} == then


def files_of(root: Path) -> dict[str, bytes]:
    """Return every file under `root` except bytecode, which a server writes."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }


def test_bento_tag__requested_flavor__is_part_of_the_version(
    shared_bundle: VerifiedBundle, built: BuiltBento
) -> None:
    assert bento_tag(shared_bundle, RuntimeFlavor.GPU) == f"{built.tag}-gpu"


def test_build_bento__failing_build__keeps_the_old_bento(
    built: BuiltBento, shared_bundle: VerifiedBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = (built.path / "bento.yaml").stat().st_mtime_ns
    monkeypatch.setattr(packaging, "SERVICE", "services.nothing:service")
    with pytest.raises(MlctlError, match="BentoML could not build") as caught:
        build_bento(shared_bundle, {}, force=True)
    assert caught.value.code is ErrorCode.INTERNAL
    assert "services.nothing" in caught.value.message
    assert "\n" not in caught.value.message
    assert build_bento(shared_bundle, {}).reused
    assert (built.path / "bento.yaml").stat().st_mtime_ns == made
    assert not list(bento_home().glob(".mlctl-*"))


def test_move_in__failing_move__keeps_the_old_bento(built: BuiltBento, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        packaging._move_in(tmp_path, built.tag)
    assert find_bento(built.tag).path.is_dir()


def test_served_bento__any_changed_byte_of_the_manifest__is_noticed(built: BuiltBento) -> None:
    model = built.path / "src" / "model"
    path = model / "manifest.json"
    content = path.read_bytes()
    taken = []
    try:
        for position in range(len(content)):
            changed = bytearray(content)
            changed[position] ^= 1
            path.write_bytes(changed)
            taken += [position] * accepts(model)
    finally:
        path.write_bytes(content)
    assert taken == []
    assert accepts(model)


def accepts(model: Path) -> bool:
    try:
        find_bundles(ServerSettings(bundle=None), model.parent)
    except MlctlError:
        return False
    return True


def test_served_bento__changed_evidence__does_not_start(
    built: BuiltBento, store_home: Path, tmp_path: Path
) -> None:
    home = shutil.copytree(store_home, tmp_path / "bentoml")
    path = home / built.path.relative_to(store_home) / "src" / "model" / "manifest.json"
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"max_abs_error":1e-05', b'"max_abs_error":1e-06'))
    assert path.read_bytes() != content
    server = launch(built.tag, tmp_path / "log", cwd=tmp_path, bento_home=home)
    try:
        assert server.process.wait(timeout=PATIENCE_SECONDS) != 0
    finally:
        stop(server)
    assert f"expected {built.digest}" in server.log.read_text()


def test_served_bento__invalid_setting__prints_one_reason(
    built: BuiltBento, store_home: Path, tmp_path: Path
) -> None:
    nowhere = {"MLCTL_ACCESS_LOG": str(tmp_path / "none" / "log")}
    log = tmp_path / "log"
    server = launch(built.tag, log, cwd=tmp_path, bento_home=store_home, environment=nowhere)
    try:
        exit_code = server.process.wait(timeout=PATIENCE_SECONDS)
    finally:
        stop(server)
    assert exit_code == ERROR_TABLE[ErrorCode.INVALID_INPUT].exit_code
    printed = log.read_text()
    assert printed.count("mlctl does not serve this bundle (invalid_input)") == 1
    assert "Traceback" not in printed
