"""The C programs of the benchmarks: the load generator `loadgen` and the server `echo`.

A client in Python would saturate its core at some 20,000 responses a second, before the server.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np


@dataclass(frozen=True, slots=True)
class RandomField:
    """Bytes of a request that differ in every request.

    Attributes:
        kind: h for hexadecimal digits, d for decimal digits, b for any bytes.
    """

    offset: int
    length: int
    kind: str


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """Where a load goes, and its request.

    Attributes:
        transport: http or grpc.
        request: the bytes of an HTTP request, or the result of `grpc_call`.
        fields: the bytes of `request` that differ in every request.
    """

    transport: str
    port: int
    request: bytes
    fields: Sequence[RandomField] = ()


@dataclass(frozen=True, slots=True)
class ClosedLoad:
    """The result of a closed loop of `seconds`; `client_busy` is the client's share of its core."""

    succeeded: int
    failed: int
    seconds: float
    p50_ms: float
    p99_ms: float
    client_busy: float


@dataclass(frozen=True, slots=True)
class OpenLoad:
    """The result of an open loop: per request one element of each array, float32.

    Attributes:
        due: seconds after the start at which the request was due.
        late: seconds from then until it was sent.
        latency: seconds from then until it ended.
        outcome: SUCCESS, HINTED (rejected with a retry hint), REJECTED (without one) or FAILED.
    """

    connections: int
    client_busy: float
    due: np.ndarray
    late: np.ndarray
    latency: np.ndarray
    outcome: np.ndarray


SUCCESS, HINTED, REJECTED, FAILED = range(4)


def build(name: str, folder: Path) -> Path:
    """Compile `name`.c into `folder`; needs a C compiler called cc."""
    program = folder / "bin" / name
    program.parent.mkdir(exist_ok=True)
    source = Path(__file__).with_name(f"{name}.c")
    subprocess.run(["cc", "-O2", "-o", program, source, "-lm"], check=True)
    return program


def run_closed(program: Path, target: LoadTarget, connections: int, seconds: float) -> ClosedLoad:
    """Send one request after the other on each connection for `seconds`."""
    command = closed_command(program, target, connections, seconds)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    succeeded, failed, elapsed, p50, p99, cpu = map(float, done.stdout.split())
    return ClosedLoad(int(succeeded), int(failed), elapsed, p50 / 1e3, p99 / 1e3, cpu / elapsed)


def closed_command(
    program: Path, target: LoadTarget, connections: int, seconds: float
) -> list[str | Path]:
    """Return the command line of a closed loop; write its files beside `program`."""
    return [*_command("closed", program, target, seconds), str(connections)]


def run_open(
    program: Path,
    target: LoadTarget,
    rate: float,
    seconds: float,
    rejection: tuple[bytes, bytes],
    connections: tuple[int, int] = (256, 1000),
) -> OpenLoad:
    """Send `rate` requests a second at random moments for `seconds`, whatever the responses.

    Args:
        rejection: bytes in the head of a rejection, and in that of one with a retry hint.
        connections: how many to open before the measurement, and the limit.
    """
    files = [program.with_name(name) for name in ("rejection", "hint")]
    for file, content in zip(files, rejection, strict=True):
        file.write_bytes(content)
    command = [*_command("open", program, target, seconds), f"{rate:.3f}"]
    done = subprocess.run(
        [*command, *map(str, connections), *files], check=True, stdout=subprocess.PIPE
    )
    line, _, rest = done.stdout.partition(b"\n")
    opened, cpu, elapsed = map(float, line.split())
    columns = np.frombuffer(rest, np.float32).reshape(-1, 4).T
    return OpenLoad(int(opened), cpu / elapsed, *columns)


def _command(mode: str, program: Path, target: LoadTarget, seconds: float) -> list[str | Path]:
    request, fields = program.with_name("request"), program.with_name("fields")
    request.write_bytes(target.request)
    lines = (f"{each.offset} {each.length} {each.kind}\n" for each in target.fields)
    fields.write_text("".join(lines))
    address = (target.transport, str(target.port))
    return [program, mode, *address, request, fields, f"{seconds:.3f}"]


def grpc_call(
    path: str, message: bytes, metadata: Mapping[str, str] = MappingProxyType({})
) -> bytes:
    """Return a unary call in the format of the request file: HPACK block, then message."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "127.0.0.1",
        "content-type": "application/grpc",
        "te": "trailers",
        **metadata,
    }
    block = b"".join(_header(name.encode(), value.encode()) for name, value in fields.items())
    return len(block).to_bytes(4) + block + b"\0" + len(message).to_bytes(4) + message


def _header(name: bytes, value: bytes) -> bytes:
    """Encode a header as a literal without indexing (RFC 7541, 6.2.2); below 127 bytes each."""
    return b"\0%c%b%c%b" % (len(name), name, len(value), value)
