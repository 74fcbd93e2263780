"""The servers of benchmarks/online: how each is started, and which ways it can be asked."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.ways import Way, bare_way, mixed_ways, typed_way, v2_ways
from benchmarks.workloads import MAX_ROWS, NAME, Workload
from rollout.drivers.local.launcher import free_ports
from tests.support.wait import wait_until

ROOT = Path(__file__).resolve().parents[1]
APPS = Path(__file__).parent / "peers" / "apps"
OURS = "mlctl"
TRITON_DELAY_US = 500
_START_SECONDS = 60.0
_PACKAGES = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


@dataclass(frozen=True, slots=True)
class Contender:
    """One server; `health` is None if an open port is all there is to know."""

    name: str
    ways: tuple[Way, ...]
    command: Sequence[Path | str]
    port: int
    grpc_port: int
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    health: str | None = None
    cwd: Path | None = None

    def port_of(self, way: Way) -> int:
        """Where to ask by `way`."""
        return self.grpc_port if way.kind == "grpc" else self.port

    def start(self) -> subprocess.Popen[bytes]:
        """Start the server and wait until it can be asked; SystemExit with its log if it ends."""
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.command,
                cwd=self.cwd or self.folder,
                env={**os.environ, **self.environment},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            wait_until(lambda: process.poll() is not None or self._is_up(), _START_SECONDS)
        except AssertionError:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.poll() is not None:
            tail = log.read_text(errors="replace")[-3000:]
            raise SystemExit(f"{self.name} did not come up:\n{tail}")
        return process

    def _is_up(self) -> bool:
        try:
            if self.health is None:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return True
            answer = httpx.get(f"http://127.0.0.1:{self.port}{self.health}", timeout=5)
        except (OSError, httpx.TransportError):
            return False
        return answer.status_code == httpx.codes.OK


@dataclass(frozen=True, slots=True)
class Arena:
    """What all contenders of one workload share: a `folder`, the `peers`' one, the echo program."""

    workload: Workload
    folder: Path
    peers: Path | None
    echo: Path

    def contenders(self) -> list[Contender]:
        """Ours, the limits, and every peer that has an environment."""
        found = [self.ours(), *self.limits()]
        if self.peers is not None:
            makers = {
                "pytriton": self.tritons,
                "mlserver": self.mlserver,
                "litserve": self.litserve,
                "bentoml": self.bentoml,
            }
            for name, make in makers.items():
                if (self.peers / name / "bin" / "python").exists():
                    found += make(self.peers / name)
        return found

    def ours(self, *, provider: str = "") -> Contender:
        """This project's server, with nothing turned off."""
        port, grpc_port = free_ports(2)
        command = [sys.executable, "-m", "bentoml", "serve", "services.service:service"]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        environment = {
            "MLCTL_BUNDLE": str(self.workload.bundle.root),
            "MLCTL_GRPC_PORT": str(grpc_port),
            "MLCTL_PROVIDER": provider,
            "BENTOML_HOME": str(self.folder / OURS / "bentoml"),
            "BENTOML_DO_NOT_TRACK": "True",
        }
        return Contender(
            OURS,
            (*v2_ways(self.workload), *mixed_ways(self.workload)),
            command,
            port,
            grpc_port,
            self.folder / OURS,
            environment,
            "/readyz",
            ROOT,
        )

    def limits(self) -> list[Contender]:
        """An empty ASGI application under uvicorn, and the least server in C."""
        port, other = free_ports(2)
        ways = (bare_way(self.workload),)
        uvicorn = [sys.executable, "-m", "uvicorn", "empty_app:app", "--port", str(port)]
        uvicorn += ["--loop", "uvloop", "--http", "httptools", "--no-access-log"]
        size = str(self.workload.answer.nbytes)
        return [
            Contender("uvicorn, empty", ways, uvicorn, port, 0, self.folder / "empty", cwd=APPS),
            Contender(
                "C echo", ways, [self.echo, str(other), size], other, 0, self.folder / "echo"
            ),
        ]

    def tritons(self, home: Path) -> list[Contender]:
        """Triton with its Python backend, without a delay and with one."""
        return [self._triton(home, 0), self._triton(home, TRITON_DELAY_US)]

    def _triton(self, home: Path, delay_us: int) -> Contender:
        name = f"Triton, Python backend, delay {delay_us} us"
        # The backend starts its stub through a shell: no spaces in the path.
        folder, server = (
            self.folder / f"triton-{delay_us}",
            home / _PACKAGES / "pytriton/tritonserver",
        )
        port, grpc_port, metrics_port = free_ports(3)
        backend = folder / "backends" / "python"
        shutil.copytree(server / "backends" / "python", backend)
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
        shutil.copy(stub, backend)
        (folder / "models" / NAME / "1").mkdir(parents=True)
        shutil.copy(APPS / "triton.py", folder / "models" / NAME / "1" / "model.py")
        (folder / "models" / NAME / "config.pbtxt").write_text(self._triton_config(delay_us))
        ports = {"http": port, "grpc": grpc_port, "metrics": metrics_port}
        command: list[Path | str] = [server / "bin" / "tritonserver"]
        command += [f"--{kind}-port={number}" for kind, number in ports.items()]
        command += [f"--model-repository={folder / 'models'}"]
        command += [f"--backend-directory={folder / 'backends'}", "--http-address=127.0.0.1"]
        # The stub links the interpreter's library, the server those beside the wheel.
        libraries = [sysconfig.get_config_var("LIBDIR"), home / _PACKAGES / "nvidia_pytriton.libs"]
        environment = self._environment(port) | {
            "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
            "BENCH_PATH": os.pathsep.join(map(str, (APPS, home / _PACKAGES))),
        }
        ways = (*v2_ways(self.workload), *mixed_ways(self.workload))
        ready = f"/v2/models/{NAME}/ready"
        return Contender(name, ways, command, port, grpc_port, folder, environment, ready)

    def _triton_config(self, delay_us: int) -> str:
        kind = self.workload.datatype.value
        x, y = self.workload.row.shape[1], self.workload.answer.shape[1]
        delay = f"max_queue_delay_microseconds: {delay_us}" if delay_us else ""
        return (
            f'name: "{NAME}"\nbackend: "python"\nmax_batch_size: {MAX_ROWS}\n'
            f'input [{{ name: "x", data_type: TYPE_{kind}, dims: [{x}] }}]\n'
            f'output [{{ name: "y", data_type: TYPE_FP32, dims: [{y}] }}]\n'
            f"dynamic_batching {{ {delay} }}\n"
            "instance_group [{ count: 1, kind: KIND_CPU }]\n"
        )

    def mlserver(self, home: Path) -> list[Contender]:
        """MLServer without its pool of processes."""
        folder = self.folder / "mlserver"
        port, grpc_port, metrics_port = free_ports(3)
        folder.mkdir(parents=True)
        settings = {
            "host": "127.0.0.1",
            "http_port": port,
            "grpc_port": grpc_port,
            "metrics_port": metrics_port,
            "parallel_workers": 0,
        }
        model = {
            "name": NAME,
            "implementation": "mlserver_runtime.Runtime",
            "max_batch_size": MAX_ROWS,
            "max_batch_time": TRITON_DELAY_US / 1e6,
        }
        (folder / "settings.json").write_text(json.dumps(settings))
        (folder / "model-settings.json").write_text(json.dumps(model))
        ways = tuple(way for way in v2_ways(self.workload) if way.name != "V2 binary")
        command: list[Path | str] = [home / "bin" / "mlserver", "start", "."]
        ready, environment = f"/v2/models/{NAME}/ready", self._environment(port)
        return [Contender("MLServer", ways, command, port, grpc_port, folder, environment, ready)]

    def litserve(self, home: Path) -> list[Contender]:
        """LitServe with one process for HTTP and one for the model."""
        (port,) = free_ports(1)
        ways, command = (
            (typed_way(self.workload),),
            [home / "bin" / "python", APPS / "litserve_app.py"],
        )
        folder, environment = self.folder / "litserve", self._environment(port)
        return [Contender("LitServe", ways, command, port, 0, folder, environment, "/health")]

    def bentoml(self, home: Path) -> list[Contender]:
        """A plain BentoML service."""
        (port,) = free_ports(1)
        ways = (typed_way(self.workload),)
        command: list[Path | str] = [home / "bin" / "bentoml", "serve", "bento_app:Bench"]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        folder = self.folder / "bentoml"
        environment = self._environment(port) | {
            "BENTOML_HOME": str(folder / "home"),
            "BENTOML_DO_NOT_TRACK": "True",
        }
        return [Contender("BentoML", ways, command, port, 0, folder, environment, "/readyz", APPS)]

    def _environment(self, port: int) -> dict[str, str]:
        return {
            "BENCH_MODEL": str(self.workload.model),
            "BENCH_DTYPE": self.workload.row.dtype.name,
            "BENCH_PORT": str(port),
            "PYTHONPATH": str(APPS),
        }
