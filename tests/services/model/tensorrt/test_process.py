import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mlctl.services.model.tensorrt.process import Cause, WorkerError, build_engine, run_worker
from mlctl.services.model.tensorrt.profile import SizeRange, make_profile
from tests.services.model.tensorrt.graphs import scaling
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module named `stranger` that workers load in TensorRT's place; a test writes it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "stranger.py"


def load() -> WorkerError:
    with pytest.raises(WorkerError) as caught:
        run_worker("build", {"library": "stranger"}, 60.0)
    return caught.value


def test_build_engine__without_a_gpu__builds(tmp_path: Path) -> None:
    model = scaling(tmp_path / "model.onnx")
    built = build_engine(model, make_profile({"x": (-1, 3)}, None, SizeRange(1, 1, 1)), 600.0)
    assert built.engine_bytes > 0
    assert built.version.startswith("1.")


def test_build_engine__dynamic_input_without_profile__is_rejected(tmp_path: Path) -> None:
    model = scaling(tmp_path / "model.onnx")
    with pytest.raises(WorkerError, match="profile") as caught:
        build_engine(model, {}, 600.0)
    assert caught.value.cause is Cause.REJECTED


def test_worker__library_does_not_load__is_unavailable(library: Path) -> None:
    library.write_text("raise ImportError('libnvonnxparser.so.11 is missing')")
    error = load()
    assert error.cause is Cause.UNAVAILABLE
    assert "libnvonnxparser.so.11" in error.reason


def test_worker__crash__names_the_signal_and_last_output(library: Path) -> None:
    library.write_text(
        "import os, signal\nprint('to stdout, and no answer', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    error = load()
    assert error.cause is Cause.CRASHED
    assert error.reason == "its process died of SIGSEGV: to stdout, and no answer"


def test_worker__exception__is_a_crash(library: Path) -> None:
    library.write_text("raise MemoryError('no room')")
    error = load()
    assert error.cause is Cause.CRASHED
    assert error.reason == "its process died with exit code 1: MemoryError: no room"


def test_worker__build_hangs__is_killed_with_its_children(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "parent", tmp_path / "child"
    library.write_text(
        "import os, pathlib, signal\n"
        "name = 'parent' if os.fork() else 'child'\n"
        f"(pathlib.Path({str(tmp_path)!r}) / name).write_text(str(os.getpid()))\n"
        "signal.pause()\n"
    )
    communicate: Any = subprocess.Popen.communicate

    def expire(process: Any, request: bytes, seconds: float) -> Any:
        """Let the time be over when the build hangs."""
        assert seconds == 60.0
        with pytest.raises(subprocess.TimeoutExpired):
            communicate(process, request, 0.01)
        wait_until(lambda: all(path.is_file() and path.stat().st_size for path in pids))
        return communicate(process, timeout=0.01)

    monkeypatch.setattr(subprocess.Popen, "communicate", expire)
    error = load()
    assert error.cause is Cause.TIMED_OUT
    assert error.reason == "it did not finish within 60 s"
    for path in pids:
        wait_until(partial(is_gone, int(path.read_text())), what=path.name)


def is_gone(pid: int) -> bool:
    """Whether the process has ended, even if nobody has reaped it yet."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True


def test_worker__after_a_build__parent_has_not_loaded_tensorrt() -> None:
    mapped = Path(f"/proc/{os.getpid()}/maps").read_text()
    assert "libtensorrt_rtx" not in mapped
