import importlib.metadata
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from mlctl.core.home import HOME_VARIABLE
from mlctl.core.packages import installed_version
from mlctl.core.ports import free_ports
from mlctl.doctor import checks
from mlctl.doctor.checks import (
    Finding,
    Severity,
    check_features,
    check_home,
    check_precomputed,
    check_registry,
    check_runtime,
    check_tensorrt,
    run_checks,
)
from mlctl.services.model.tensorrt import machine as tensorrt
from mlctl.services.model.tensorrt.machine import Gpu
from mlctl.services.precomputed.base import PrecomputedRow
from mlctl.services.precomputed.store_urls import open_store

GPU = Gpu("NVIDIA L4", "8.9", "580.65.06")


@pytest.fixture
def distributions(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def pretend(**versions: str | None) -> None:
        real = installed_version
        named = {name.replace("_", "-"): version for name, version in versions.items()}
        monkeypatch.setattr(
            checks, "installed_version", lambda name: named[name] if name in named else real(name)
        )

    return pretend


def test_run_checks__this_machine__is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    findings = {finding.check: finding for finding in run_checks()}
    assert {name for name, f in findings.items() if f.severity is not Severity.OK} == set()
    assert importlib.metadata.version("onnxruntime") in findings["runtime"].message


def test_registry__no_server_listens__is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@127.0.0.1:{port}")
    finding = check_registry()
    assert finding.severity is Severity.FAIL
    assert f"no MLflow registry answers at http://127.0.0.1:{port}: " in finding.message


def test_runtime__none_installed__fails_and_names_both_extras(
    distributions: Callable[..., None],
) -> None:
    distributions(onnxruntime=None, onnxruntime_gpu=None)
    finding = check_runtime()
    assert finding.severity is Severity.FAIL
    assert "'.[cpu]'" in finding.remedy
    assert "gpu" in finding.remedy


def test_runtime__two_installed__fails(distributions: Callable[..., None]) -> None:
    distributions(onnxruntime="1.31.1", onnxruntime_gpu="1.31.1")
    finding = check_runtime()
    assert finding.severity is Severity.FAIL
    assert "overwrite each other" in finding.message


def test_home__is_a_file__fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "file"))
    finding = check_home()
    assert finding.severity is Severity.FAIL
    assert "MLCTL_HOME" in finding.remedy


def test_run_checks__check_raises__is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "file" / "below"))
    findings = {finding.check: finding for finding in run_checks()}
    assert findings["registry"].severity is Severity.FAIL
    assert "not a directory" in findings["registry"].message
    assert findings["python"].severity is Severity.OK


def test_tensorrt__not_installed__is_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt, "tensorrt_version", lambda: None)
    assert check_tensorrt() == Finding("tensorrt", Severity.OK, "not installed (optional)")


@pytest.mark.parametrize(
    ("gpu", "problem", "severity", "said"),
    [
        (None, None, Severity.WARN, "TensorRT 11.4 cannot be used: no NVIDIA GPU"),
        (GPU, "it needs TensorRT 10", Severity.WARN, "cannot be used: it needs TensorRT 10"),
        (GPU, None, Severity.OK, "TensorRT 11.4 on NVIDIA L4, driver 580.65.06"),
    ],
)
def test_tensorrt__no_gpu_or_another_major__warns(
    monkeypatch: pytest.MonkeyPatch,
    gpu: Gpu | None,
    problem: str | None,
    severity: Severity,
    said: str,
) -> None:
    monkeypatch.setattr(tensorrt, "tensorrt_version", lambda: "11.4")
    monkeypatch.setattr(tensorrt, "provider_problem", lambda: problem)
    if gpu is None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    else:
        monkeypatch.setattr(tensorrt, "find_gpu", lambda: gpu)
    finding = check_tensorrt()
    assert finding.severity is severity
    assert said in finding.message


def test_precomputed__configured_store__is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLCTL_PRECOMPUTED", raising=False)
    assert check_precomputed().severity is Severity.OK
    monkeypatch.setenv("MLCTL_PRECOMPUTED", "scores")
    monkeypatch.setenv("MLCTL_PRECOMPUTED_STORE", str(tmp_path))
    empty = check_precomputed()
    assert (empty.severity, empty.remedy) == (
        Severity.WARN,
        "mlctl batch run ... --out precomputed://scores",
    )
    store = open_store("scores", str(tmp_path))
    number = store.create("d" * 64, 0.0, "me")
    store.commit(number, [PrecomputedRow("a", 0.0, b"1")])
    store.seal(number)
    store.flip(number, 1.0)
    store.close()
    found = check_precomputed()
    assert found.severity is Severity.OK
    assert "live for dddddddddddd (1 keys)" in found.message


def test_features__a_store_that_answers__is_named_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLCTL_FEATURE_STORE", raising=False)
    assert check_features().severity is Severity.OK
    path = tmp_path / "features.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE users (user TEXT)")
    monkeypatch.setenv("MLCTL_FEATURE_STORE", f"sqlite://{path}")
    assert check_features() == Finding("features", Severity.OK, f"sqlite://{path} answers")


@pytest.mark.parametrize(
    "location",
    ["redis://me:secret@127.0.0.1:1/0", "redis://me:sec?ret@127.0.0.1:1/0", "sqlite:///none.db"],
)
def test_features__a_store_that_does_not_answer__is_a_failure(
    monkeypatch: pytest.MonkeyPatch, location: str
) -> None:
    monkeypatch.setenv("MLCTL_FEATURE_STORE", location)
    found = check_features()
    assert found.severity is Severity.FAIL
    assert found.remedy
    assert "sec" not in found.message + found.remedy


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("redis://me:geheim@127.0.0.1:1/0", "scores in redis://127.0.0.1:1/0: "),
        ("redis://127.0.0.1:1/0?password=geheim", "scores in redis://127.0.0.1:1/0: "),
        ("redis://me:ge?heim@127.0.0.1:1/0", "percent-encode"),
        ("redis://geheim@127.0.0.1:1/0?socket_timeout=geheim", "Invalid value for"),
        ("postgresql://me:geheim@127.0.0.1:1/db", "postgresql:// is not a store"),
        ("ftp://me:geheim@h", "ftp:// is not a store"),
    ],
)
def test_precomputed__unreachable_store__fails_without_the_password(
    monkeypatch: pytest.MonkeyPatch, place: str, told: str
) -> None:
    monkeypatch.setenv("MLCTL_PRECOMPUTED", "scores")
    monkeypatch.setenv("MLCTL_PRECOMPUTED_STORE", place)
    found = check_precomputed()
    assert found.severity is Severity.FAIL
    assert told in found.message
    assert "heim" not in found.message
    assert found.remedy


def test_settings__misspelt_or_invalid__are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.check_settings().severity is Severity.OK
    monkeypatch.setenv("MLCTL_WORKERS", "many")
    invalid = checks.check_settings()
    assert (invalid.severity, "MLCTL_WORKERS" in invalid.message) == (Severity.FAIL, True)
    monkeypatch.setenv("MLCTL_WORKER", "2")
    unknown = checks.check_settings()
    assert unknown.severity is Severity.WARN
    assert "did you mean MLCTL_WORKERS?" in unknown.message
