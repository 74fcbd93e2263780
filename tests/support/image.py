"""Run what an image holds without an engine: its files, its environment, another user."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mlctl.bento.containers.container import CONTAINERFILE
from mlctl.bento.containers.containerfile import USER
from mlctl.core.ports import free_ports
from tests.support.wait import PATIENCE_SECONDS, wait_until

_ENV = re.compile(r'^ENV ([A-Z_]+)="?(.*?)"?$', re.MULTILINE)
_ENTRYPOINT = re.compile(r"^ENTRYPOINT (.*)$", re.MULTILINE)
Tree = dict[str, tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Started:
    """A server of an unpacked image; `user` is whom it runs as."""

    port: int
    grpc_port: int
    user: int
    log: Path


def tree_of(root: Path) -> Tree:
    """Mode, size and time of every path, by which a write is noticed."""
    found = {}
    for path in (root, *root.rglob("*")):
        status = path.lstat()
        found[str(path.relative_to(root))] = (status.st_mode, status.st_size, status.st_mtime_ns)
    return found


def unpack_context(context: Path, root: Path) -> Path:
    """Lay the context's files out under `root` as the image does; nobody else may write there."""
    place = root / "srv"
    shutil.copytree(context / "bento", place / "bento")
    shutil.copyfile(context / "health.py", place / "health.py")
    subprocess.run(["chmod", "-R", "a+rX,a-w", str(place)], check=True)
    return place


def other_user(python: Path) -> int:
    """The image's user if this process may become it and it may run `python`, or our own."""
    if os.geteuid() != 0:
        return os.geteuid()
    tried = subprocess.run(
        # Through a shell: the first program is still looked up with our own rights.
        [*_as_user(USER), "sh", "-c", 'exec "$0" -c ""', str(python)],
        capture_output=True,
        check=False,
    )
    return USER if tried.returncode == 0 else 0


@contextmanager
def served(context: Path, place: Path, python: Path, scratch: Path) -> Iterator[Started]:
    """Start the image's server from `place` with `python`; ready when its health check says so."""
    user = other_user(python)
    open_folder(scratch)
    port, grpc_port = free_ports(2)
    environment = _environment(context, place, scratch, port, grpc_port)
    started = Started(port, grpc_port, user, scratch.parent / "server.log")
    # SageMaker's argument; without one it does the same.
    command = [*_command(context, python, user), "serve"]
    check = [*_as_user(user), str(python), "-I", str(place / "health.py")]
    with started.log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=place / "bento", env=environment, stdout=output, stderr=output
        )

    def healthy() -> bool:
        assert process.poll() is None, started.log.read_text()
        done = subprocess.run(check, env=environment, capture_output=True, check=False)
        return done.returncode == 0

    try:
        assert not healthy(), "the health check passes before the server can be ready"
        wait_until(healthy, what="the health check passes")
        yield started
    finally:
        process.send_signal(signal.SIGTERM)
        ended = process.wait(timeout=PATIENCE_SECONDS)
    assert ended == 0, f"{ended}: {started.log.read_text()}"


def run_image(
    context: Path,
    place: Path,
    python: Path,
    scratch: Path,
    *arguments: str,
    python_path: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """`docker run IMAGE ARGUMENTS`: the image's entry point from `place`, to its end.

    `python_path` is a folder of modules that precede the image's.
    """
    if not scratch.exists():
        open_folder(scratch)
    environment = _environment(context, place, scratch, *free_ports(2))
    if python_path is not None:
        environment["PYTHONPATH"] = f"{python_path}:{environment['PYTHONPATH']}"
    return subprocess.run(
        [*_command(context, python, other_user(python)), *arguments],
        cwd=place / "bento",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )


def open_folder(folder: Path) -> Path:
    """Make a folder that every user may write to, as the image's /tmp."""
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def _command(context: Path, python: Path, user: int) -> list[str]:
    """The image's entry point, with `python` in the place of its own."""
    (found,) = _ENTRYPOINT.findall((context / CONTAINERFILE).read_text())
    first, *rest = json.loads(found)
    assert first == "/opt/venv/bin/python"
    return [*_as_user(user), str(python), *rest]


def _as_user(user: int) -> list[str]:
    if user == os.geteuid():
        return []
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]


def _environment(
    context: Path, place: Path, scratch: Path, port: int, grpc_port: int
) -> dict[str, str]:
    """The image's own variables, with /srv at `place`, /tmp at `scratch`, ports on loopback."""
    text = (context / CONTAINERFILE).read_text()
    ours: Mapping[str, str] = {
        "BENTOML_HOST": "127.0.0.1",
        "BENTOML_PORT": str(port),
        "MLCTL_GRPC_HOST": "127.0.0.1",
        "MLCTL_GRPC_PORT": str(grpc_port),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TMPDIR": str(scratch),
    }
    image = {
        name: value.replace("/tmp", str(scratch), 1).replace("/srv", str(place), 1)
        for name, value in _ENV.findall(text)
    }
    return {**image, **ours}
