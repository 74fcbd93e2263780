"""The servers that the benchmarks compare: how each starts, and the protocols it serves."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from benchmarks.protocols import Protocol, bento_protocol, echo_protocol, v2_protocols
from benchmarks.workloads import MAX_ROWS, NAME, NetBundle
from mlctl.bento.packaging import build_bento
from mlctl.core.home import HOME_VARIABLE
from mlctl.core.ports import free_ports
from mlctl.rollout.domain.process_ref import PROXY
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal

ROOT = Path(__file__).resolve().parents[1]
MLCTL, UP, ECHO = "mlctl", "mlctl up", "C echo"
DEPLOYMENT = "bench"
_APPS = Path(__file__).parent / "peers" / "apps"
_TRITON_DELAY_US = 500
_START_SECONDS = 60.0
_STOP_SECONDS = 20.0
_PACKAGES = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


@dataclass(frozen=True, slots=True)
class Server:
    """How to start one server.

    Attributes:
        folder: its log and state.
        health: the path that answers 200 when it is ready; None if an open port says so.
    """

    name: str
    protocols: tuple[Protocol, ...]
    command: Sequence[Path | str]
    port: int
    grpc_port: int
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    health: str | None = None
    cwd: Path | None = None

    def port_of(self, protocol: Protocol) -> int:
        """Return the port that serves `protocol`."""
        return self.grpc_port if protocol.transport == "grpc" else self.port

    def start(self) -> subprocess.Popen[bytes]:
        """Start the server and wait until it is ready; SystemExit with its log if it fails."""
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
            wait_until(lambda: process.poll() is not None or self._is_ready(), self.name)
        except TimeoutError:
            stop(process)
        if process.poll() is not None:
            tail = log.read_text(errors="replace")[-3000:]
            raise SystemExit(f"{self.name} did not start:\n{tail}")
        return process

    def _is_ready(self) -> bool:
        try:
            if self.health is None:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return True
            response = httpx.get(f"http://127.0.0.1:{self.port}{self.health}", timeout=5)
        except (OSError, httpx.TransportError):
            return False
        return response.status_code == httpx.codes.OK


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A started server and its processes; `proxy` is what stands in front of it, if anything."""

    server: Server
    process: psutil.Process
    proxy: psutil.Process | None = None

    def cpu_seconds(self) -> float:
        """Return the user and system seconds of all its processes."""
        return tree_cpu_seconds(self.process)

    def process_ids(self) -> list[int]:
        """Return the numbers of all its processes, and of the proxy's."""
        roots = [self.process, *([self.proxy] if self.proxy else ())]
        return [each.pid for root in roots for each in (root, *root.children(recursive=True))]

    def proxy_cpu_seconds(self) -> float:
        """Return the user and system seconds of the proxy, 0 without one."""
        return tree_cpu_seconds(self.proxy) if self.proxy else 0.0

    def mebibytes(self) -> float:
        """Return the resident set of its largest process: a worker."""
        tree = [self.process, *self.process.children(recursive=True)]
        largest: float = max(each.memory_info().rss for each in tree)
        return largest / 2**20


@dataclass(frozen=True, slots=True)
class Cores:
    """The server's cores and the client's; one core serves both on a machine with one."""

    server: frozenset[int]
    client: int

    @classmethod
    def pick(cls, *, shared: bool = False) -> Cores:
        """Pick the first two cores; if `shared`, the server may use the client's as well."""
        first, *others = sorted(os.sched_getaffinity(0))
        client = others[0] if others else first
        return cls(frozenset({first, client} if shared else {first}), client)

    @contextmanager
    def for_client(self) -> Iterator[None]:
        """Run the block on the client's core."""
        with _on_cores({self.client}):
            yield

    @contextmanager
    def for_server(self) -> Iterator[None]:
        """Run the block, and the processes it starts, on the server's cores."""
        with _on_cores(self.server):
            yield


@contextmanager
def _on_cores(cores: set[int] | frozenset[int]) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def running(server: Server, cores: Cores) -> Iterator[RunningServer]:
    """Start `server` on the server's cores; stop it at the end."""
    with cores.for_server():
        process = server.start()
    try:
        yield RunningServer(server, psutil.Process(process.pid))
    finally:
        stop(process)


@contextmanager
def deployment(workload: NetBundle, folder: Path, cores: Cores) -> Iterator[RunningServer]:
    """Run a Bento of `workload` with `mlctl up`; all of its processes share the server's cores."""
    home, name = folder / "up", DEPLOYMENT
    environment = {HOME_VARIABLE: str(home), "BENTOML_HOME": str(home / "bentoml")}
    environment |= {"BENTOML_DO_NOT_TRACK": "True"}
    # The daemon and Envoy outlive this process unless `finally` runs.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "mlctl.cli.main"]
    with _environment(environment):
        labels = {"mlctl.model": NAME, "mlctl.version": "1", "mlctl.source": f"models:/{NAME}/1"}
        tag = build_bento(workload.bundle, labels).tag
        try:
            with cores.for_server():
                start = [*command, "up", name, tag, "--port", str(port), "--no-runs"]
                subprocess.run(start, cwd=ROOT, check=True, capture_output=True)
            with Journal(paths.journal()) as journal:
                processes = journal.processes(name)
                live = f"{journal.deployment(name).slot}/0"
            server = Server(UP, v2_protocols(workload), start, port, port, home)
            replica, proxy = (psutil.Process(processes[role][0].pid) for role in (live, PROXY))
            yield RunningServer(server, replica, proxy)
        finally:
            subprocess.run([*command, "down", name], cwd=ROOT, check=False, capture_output=True)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a process that leads its session: SIGTERM, then SIGKILL for the whole group."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):  # SIGKILL follows
            process.wait(_STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tree_cpu_seconds(process: psutil.Process) -> float:
    """Return the user and system seconds of `process` and its descendants."""
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def wait_until(condition: Callable[[], object], name: str, timeout: float = _START_SECONDS) -> None:
    """Poll `condition` every 20 ms; TimeoutError with `name` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name}: not within {timeout:g} s")
        time.sleep(0.02)


def mlctl_server(
    workload: NetBundle,
    folder: Path,
    name: str = MLCTL,
    *,
    access_log: bool = False,
    workers: int = 1,
) -> Server:
    """Return this project's server with its defaults, the access log written to a file or off."""
    port, grpc_port = free_ports(2)
    home = folder / name.replace(" ", "-").replace(",", "")
    environment = {
        "MLCTL_BUNDLE": str(workload.bundle.root),
        "MLCTL_GRPC_PORT": str(grpc_port),
        "MLCTL_WORKERS": str(workers),
        "MLCTL_ACCESS_LOG": str(home / "access.log") if access_log else "off",
        "BENTOML_HOME": str(home / "bentoml"),
        "BENTOML_DO_NOT_TRACK": "True",
    }
    command = [sys.executable, "-m", "bentoml", "serve", "mlctl.services.service:service"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    protocols = v2_protocols(workload)
    return Server(name, protocols, command, port, grpc_port, home, environment, "/readyz", ROOT)


def echo_server(workload: NetBundle, folder: Path, program: Path) -> Server:
    """Return the C server without a model: the limit of sockets and of the client."""
    (port,) = free_ports(1)
    command: list[Path | str] = [program, str(port), str(workload.answer.nbytes)]
    return Server(ECHO, (echo_protocol(workload),), command, port, 0, folder / "echo")


def peer_servers(workload: NetBundle, folder: Path, peers: Path) -> list[Server]:
    """Return Triton without and with a queue delay, and BentoML, as far as installed in `peers`."""
    found = []
    if (peers / "pytriton").exists():
        found += [triton(workload, folder, peers / "pytriton", us) for us in (0, _TRITON_DELAY_US)]
    if (peers / "bentoml").exists():
        found.append(bentoml(workload, folder, peers / "bentoml"))
    return found


def triton(workload: NetBundle, folder: Path, home: Path, delay_us: int) -> Server:
    """Return Triton with its Python backend calling ONNX Runtime, the only one in the wheel."""
    # The backend starts its stub through a shell: no spaces in the path.
    folder = folder / f"triton-{delay_us}"
    installed = home / _PACKAGES / "pytriton/tritonserver"
    port, grpc_port, metrics_port = free_ports(3)
    backend, model = folder / "backends" / "python", folder / "models" / NAME
    shutil.copytree(installed / "backends" / "python", backend)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy(
        installed / "python_backend_stubs" / version / "triton_python_backend_stub", backend
    )
    (model / "1").mkdir(parents=True)
    shutil.copy(_APPS / "triton.py", model / "1" / "model.py")
    (model / "config.pbtxt").write_text(_triton_config(workload, delay_us))
    command: list[Path | str] = [
        installed / "bin" / "tritonserver",
        f"--http-port={port}",
        f"--grpc-port={grpc_port}",
        f"--metrics-port={metrics_port}",
        f"--model-repository={folder / 'models'}",
        f"--backend-directory={folder / 'backends'}",
        "--http-address=127.0.0.1",
    ]
    # The stub links the interpreter's library, the server those beside the wheel.
    libraries = [sysconfig.get_config_var("LIBDIR"), home / _PACKAGES / "nvidia_pytriton.libs"]
    environment = _peer_environment(workload) | {
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
        "BENCH_PATH": os.pathsep.join(map(str, (_APPS, home / _PACKAGES))),
    }
    name, protocols = f"Triton, delay {delay_us} us", v2_protocols(workload)
    ready = f"/v2/models/{NAME}/ready"
    return Server(name, protocols, command, port, grpc_port, folder, environment, ready)


def _triton_config(workload: NetBundle, delay_us: int) -> str:
    x, y = workload.row.shape[1], workload.answer.shape[1]
    delay = f"max_queue_delay_microseconds: {delay_us}" if delay_us else ""
    return (
        f'name: "{NAME}"\nbackend: "python"\nmax_batch_size: {MAX_ROWS}\n'
        f'input [{{ name: "x", data_type: TYPE_{workload.datatype.value}, dims: [{x}] }}]\n'
        f'output [{{ name: "y", data_type: TYPE_FP32, dims: [{y}] }}]\n'
        f"dynamic_batching {{ {delay} }}\n"
        "instance_group [{ count: 1, kind: KIND_CPU }]\n"
    )


def bentoml(workload: NetBundle, folder: Path, home: Path) -> Server:
    """Return a plain BentoML service with its own JSON API."""
    (port,) = free_ports(1)
    command: list[Path | str] = [home / "bin" / "bentoml", "serve", "bento_app:Bench"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    folder = folder / "bentoml"
    environment = _peer_environment(workload) | {
        "BENTOML_HOME": str(folder / "home"),
        "BENTOML_DO_NOT_TRACK": "True",
    }
    protocols = (bento_protocol(workload),)
    return Server("BentoML", protocols, command, port, 0, folder, environment, "/readyz", _APPS)


def _peer_environment(workload: NetBundle) -> dict[str, str]:
    return {
        "BENCH_MODEL": str(workload.model),
        "BENCH_DTYPE": workload.row.dtype.name,
        "PYTHONPATH": str(_APPS),
    }
