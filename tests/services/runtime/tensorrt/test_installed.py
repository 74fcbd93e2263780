from pathlib import Path

import pytest

from services.runtime.tensorrt import installed as module
from services.runtime.tensorrt.installed import (
    linked_major,
    major_mismatch,
    provider_problem,
    tensorrt_version,
)


def test_reads_the_major_that_a_library_is_linked_to(tmp_path: Path) -> None:
    library = tmp_path / "provider.so"
    library.write_bytes(b"\x7fELF\0libcudnn.so.9\0libnvinfer.so.10\0libnvonnxparser.so.10\0")
    assert linked_major(library) == "10"
    library.write_bytes(b"\x7fELF\0libcudnn.so.9\0")
    assert linked_major(library) is None


def test_majors_must_be_the_same() -> None:
    assert major_mismatch("10", "10.16.1.11") is None
    assert major_mismatch(None, "11.4.0.106") is None
    assert major_mismatch("10", "11.4.0.106") == (
        "its provider needs TensorRT 10, and 11.4.0.106 is installed"
    )
    assert major_mismatch("10", None) == "TensorRT 10 is not installed"


def test_any_of_the_distributions_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "installed_version", {"tensorrt-cu12": "10.16.1"}.get)
    assert tensorrt_version() == "10.16.1"
    monkeypatch.setattr(module, "installed_version", lambda _: None)
    assert tensorrt_version() is None


def test_a_runtime_without_the_provider_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "onnxruntime"
    (package / "capi").mkdir(parents=True)
    (package / "__init__.py").touch()
    origin = type("Spec", (), {"origin": str(package / "__init__.py")})
    monkeypatch.setattr(module, "find_spec", lambda _: origin)
    assert provider_problem() == "the installed ONNX Runtime has no TensorRT provider"
    library = package / "capi" / "libonnxruntime_providers_tensorrt.so"
    library.write_bytes(b"libnvinfer.so.10\0")
    monkeypatch.setattr(module, "installed_version", {"tensorrt-cu13": "11.4.0.106"}.get)
    assert provider_problem() == "its provider needs TensorRT 10, and 11.4.0.106 is installed"
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    assert provider_problem() == "ONNX Runtime is not installed"
