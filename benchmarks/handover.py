"""Promotions of a real Bento and their rollbacks under V2 traffic, and which requests they cost.

Closed loops over HTTP with binary tensors and JSON, and over gRPC, each on connections of its own
that are made anew every few seconds. Behind Envoy all of them share the connections to the servers.
"""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.loadgen import LoadTarget, build, run_closed
from benchmarks.result import BenchmarkResult
from benchmarks.servers import DEPLOYMENT, Cores, deployment
from benchmarks.workloads import NAME, NetBundle, make_workload
from mlctl import chain
from mlctl.bento.packaging import build_bento
from mlctl.bundle.verify import seal
from mlctl.rollout.client import deployments
from mlctl.rollout.domain.spec import RolloutSpec

_CLIENTS = 8
_LOAD_SECONDS = 3.0
_SPEC = RolloutSpec(
    steps=(50, 100),
    step_seconds=2.0,
    bake_seconds=2.0,
    shadow_percent=0,
    alias=False,
)


@dataclass
class Traffic:
    """What the closed loop of one protocol sent so far."""

    succeeded: int = 0
    failed: int = 0


@contextmanager
def _sending(loadgen: Path, target: LoadTarget) -> Iterator[Traffic]:
    """Send while the block runs."""
    traffic, ending = Traffic(), threading.Event()

    def send() -> None:
        while not ending.is_set():
            load = run_closed(loadgen, target, _CLIENTS, _LOAD_SECONDS)
            traffic.succeeded += load.succeeded
            traffic.failed += load.failed

    with ThreadPoolExecutor(1) as thread:
        sent = thread.submit(send)
        try:
            yield traffic
        finally:
            ending.set()
            sent.result()


def measure(rounds: int, folder: Path, result: BenchmarkResult) -> None:
    """Add the table of `rounds` promotions, each of which is taken back."""
    workload = make_workload("tiny", folder / "model")
    with ExitStack() as stack:
        running = stack.enter_context(deployment(workload, folder, Cores.pick(shared=True)))
        other = _other_version(workload, folder / "other")
        sent: dict[str, Traffic] = {}
        for number, protocol in enumerate(running.server.protocols):
            place = folder / f"load-{number}"
            place.mkdir()
            target = protocol.target(running.server.port_of(protocol))
            sent[protocol.name] = stack.enter_context(_sending(build("loadgen", place), target))
        for number in range(rounds):
            chain.promote(DEPLOYMENT, other, _SPEC, check=False)
            back = deployments.rollback(DEPLOYMENT, "benchmark")
            for _ in deployments.follow(DEPLOYMENT, back.id):
                pass
            print(f"promotion {number + 1} of {rounds}", file=sys.stderr)
    table = result.table(
        f"{rounds} promotions of a Bento and their rollbacks; {_CLIENTS} clients per protocol",
        *("protocol", "answered", "failed"),
    )
    for name, traffic in sent.items():
        table.add(name, traffic.succeeded, traffic.failed)


def _other_version(workload: NetBundle, root: Path) -> str:
    """Build a Bento of the same net as another version of the model; return its tag."""
    shutil.copytree(workload.bundle.root, root)
    manifest = workload.bundle.manifest
    source = manifest.source.model_copy(update={"version": "2", "uri": f"models:/{NAME}/2"})
    bundle = seal(root, manifest.model_copy(update={"source": source}))
    labels = {"mlctl.model": NAME, "mlctl.version": "2", "mlctl.source": source.uri}
    return build_bento(bundle, labels).tag
