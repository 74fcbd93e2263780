"""The small C programs of the benchmarks: two load clients and the least of all servers.

A client in Python would be the slower side: its core is full at some 20,000 answers a second.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

_SOURCES = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Load:
    """What a run of `seconds` saw; `cpu_share` is how busy the client kept its core."""

    answered: int
    failed: int
    seconds: float
    p50_ms: float
    p99_ms: float
    cpu_share: float


@dataclass(frozen=True, slots=True)
class Offered:
    """What became of each request of an open loop: an element of each array, float32.

    It was `due` so many seconds after the start, sent so much `late`, and over `latency` seconds
    after it was due; `outcome` is one of those below. `connections` is how many were needed.
    """

    connections: int
    cpu_share: float
    due: np.ndarray
    late: np.ndarray
    latency: np.ndarray
    outcome: np.ndarray


ANSWERED, HINTED, REFUSED, FAILED = range(4)


def build(name: str, folder: Path) -> Path:
    """Compile `name`.c into `folder`; needs a C compiler called cc."""
    program = folder / "bin" / name
    program.parent.mkdir(exist_ok=True)
    source = _SOURCES / f"{name}.c"
    subprocess.run(["cc", "-O2", "-o", program, source, "-lm"], check=True)
    return program


@dataclass(frozen=True, slots=True)
class RandomField:
    """Bytes of a request that differ in each: `kind` is h for hexadecimal digits, d for decimal
    ones, b for any bytes.
    """

    offset: int
    length: int
    kind: str


def run_load(
    program: Path,
    kind: str,
    port: int,
    request: Path,
    connections: int,
    seconds: float,
    fields: Sequence[RandomField] = (),
) -> Load:
    """Send requests to `port` by `kind`, http or grpc, on each connection for `seconds`.

    All requests are alike but for `fields`.
    """
    command: list[str | Path] = [program, kind, str(port), str(connections)]
    command += [f"{seconds:.3f}", request]
    if fields:
        path = request.with_name("fields")
        path.write_text("".join(f"{each.offset} {each.length} {each.kind}\n" for each in fields))
        command.append(path)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    answered, failed, taken, p50, p99, cpu = map(float, done.stdout.split())
    return Load(int(answered), int(failed), taken, p50 / 1e3, p99 / 1e3, cpu / taken)


def run_open(
    program: Path,
    kind: str,
    port: int,
    request: Path,
    rate: float,
    seconds: float,
    refusal: tuple[bytes, bytes],
    connections: tuple[int, int] = (256, 2000),
) -> Offered:
    """Ask `port` by `kind` at random moments, `rate` times a second, whatever was answered.

    From the first to the second of `connections` are made, the first ones before. A refusal is
    told by what its headers or trailers have, and by the second of `refusal` one that says when
    to ask again.
    """
    files = [request.with_name(name) for name in ("refusal", "hint")]
    for file, content in zip(files, refusal, strict=True):
        file.write_bytes(content)
    command: list[str | Path] = [program, kind, str(port), f"{rate:.3f}", f"{seconds:.3f}"]
    command += [*map(str, connections), request, *files]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    line, _, rest = done.stdout.partition(b"\n")
    opened, cpu, taken = map(float, line.split())
    columns = np.frombuffer(rest, np.float32).reshape(-1, 4).T
    return Offered(int(opened), cpu / taken, *columns)


def grpc_call(
    path: str, message: bytes, metadata: Mapping[str, str] = MappingProxyType({})
) -> bytes:
    """A unary call as the client's file has it: the headers' HPACK block, then the message."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "127.0.0.1",
        "content-type": "application/grpc",
        "te": "trailers",
        **metadata,
    }
    block = b"".join(_field(name.encode(), value.encode()) for name, value in fields.items())
    return len(block).to_bytes(4) + block + b"\0" + len(message).to_bytes(4) + message


def _field(name: bytes, value: bytes) -> bytes:
    """A header field as a literal that no table keeps, RFC 7541 (6.2.2); each below 127 bytes."""
    return b"\0%c%b%c%b" % (len(name), name, len(value), value)
