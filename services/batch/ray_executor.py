"""`--executor ray`: actors on the cluster read, score and commit units, this process only counts.

An actor receives the files of the bundles, not a path: it writes them, verifies them by their
digests, and only then loads them. Ray restarts an actor that died and repeats its unit, at most
three times; after that the job ends, and the same command resumes it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from mlctl.bundle.manifest import MANIFEST_NAME
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.paths import check_relative
from mlctl.services.batch.folder import FolderSink
from mlctl.services.batch.job import Executor
from mlctl.services.batch.progress import Run
from mlctl.services.batch.units import Marker, Unit
from mlctl.services.batch.worker import Scoring, UnitWorker
from mlctl.services.layout.scorable import Scorable, bundles_of, verify_copies
from mlctl.services.tables.bisect import TooManyError

# Ray reads both when it is imported: no usage statistics, and its future default without a warning.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
import ray

LOCAL = "local"
PREFIX = "mlctl-bundle-"
_RETRIES = 3
_POLL_SECONDS = 0.5
_CLOSE_SECONDS = 10.0
# Ray itself tries an address without a server for minutes.
_CONNECT_SECONDS = 5.0
Files = Mapping[str, np.ndarray]


def ray_executor(address: str | None, actors: int | None) -> Executor:
    """Return the executor of `--executor ray`.

    It has `actors` actors, or one for each core of the cluster (each GPU, for a model made for
    one).
    """

    def execute(scoring: Scoring, run: Run, units: Sequence[Unit]) -> None:
        sink = scoring.sink
        if not isinstance(sink, FolderSink):
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                "--executor ray writes to folders and buckets, not to this kind of --out",
                "Use --executor local, or write to a folder first.",
            )
        with connected(address or LOCAL, actors), _translate_ray_errors():
            pool = _start_actors(WorkerSetup(scoring, read_files(scoring.model)), actors)
            try:
                _process(pool, run, deque(units))
            finally:
                _close(pool)
        _check_visible(sink, units)

    return execute


def _check_visible(sink: FolderSink, units: Sequence[Unit]) -> None:
    """Raise unless this machine sees every marker: actors may have written to their own disks."""
    markers = sink.markers()
    missing = [unit for unit in units if unit.id not in markers]
    if missing:
        raise MlctlError(
            ErrorCode.SINK_UNAVAILABLE,
            f"{len(missing)} of {len(units)} units were scored and are not in the output",
            "Every machine of the cluster must see --out: a bucket, or a volume at the same path.",
        )


def _start_actors(setup: WorkerSetup, actors: int | None) -> list[Any]:
    gpu = any(each.manifest.variant.target != "cpu" for each in bundles_of(setup.scoring.model))
    kind, resource = ("GPU", "num_gpus") if gpu else ("CPU", "num_cpus")
    cluster: Any = ray.cluster_resources()  # type: ignore[no-untyped-call]
    count = actors or int(cluster.get(kind, 0))
    if count < 1:
        raise MlctlError(
            ErrorCode.CLUSTER_UNAVAILABLE,
            f"the Ray cluster has no {kind}",
            "Give --ray-actors, for a cluster that grows on demand.",
        )
    options: dict[str, Any] = {resource: 1, "max_restarts": -1, "max_task_retries": _RETRIES}
    made: Any = ray.remote(**options)(ScoringActor)
    stored = ray.put(setup)
    return [made.remote(stored) for _ in range(count)]


def _process(actors: Sequence[Any], run: Run, units: deque[Unit]) -> None:
    """Give each actor one unit at a time once it is open: some may never be scheduled."""
    busy = {actor.open.remote(): (actor, False) for actor in actors}
    stop, working = run.control.stop, 0
    while (units and not stop.is_set()) or working:
        done, _later = ray.wait(list(busy), num_returns=1, timeout=_POLL_SECONDS)
        for ready in done:
            actor, has_unit = busy.pop(ready)
            answer = ray.get(ready)
            if isinstance(answer, Exception):
                raise answer
            if has_unit:
                working -= 1
                run.add(answer)
            if units and not stop.is_set():
                busy[actor.process.remote(units.popleft())] = (actor, True)
                working += 1
        if run.is_expired():
            break
    if units or working:
        raise run.interrupted()


def _close(actors: Sequence[Any]) -> None:
    """End the actors; their work in progress is lost."""
    closing = [actor.close.remote() for actor in actors]
    with contextlib.suppress(ray.exceptions.RayError):
        ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_SECONDS)
    for actor in actors:
        ray.kill(actor)


@contextlib.contextmanager
def connected(address: str, cores: int | None) -> Iterator[None]:
    """Connect to Ray at `address` for the block; an existing connection is used and kept.

    CLUSTER_UNAVAILABLE if it does not respond. A local Ray has `cores` cores, or those of the
    machine.
    """
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == LOCAL:
        options |= {"num_cpus": cores, "include_dashboard": False}
    check_reachable(address)
    handlers = _handlers()
    try:
        ray.init(address, **options)
    except Exception as error:  # a plain one where its own processes are too slow to start
        said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise MlctlError(
            ErrorCode.CLUSTER_UNAVAILABLE, f"Ray at {address!r} does not respond: {said}"
        ) from error
    finally:
        # Ray sets its own handlers, but the job handles signals itself.
        for number, handler in handlers.items():
            signal.signal(number, handler)
    try:
        yield
    finally:
        ray.shutdown()


def check_reachable(address: str) -> None:
    """Raise CLUSTER_UNAVAILABLE if the host and port of `address`, if any, reject connections."""
    url = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = url.hostname, url.port
    except ValueError:
        host, port = None, None
    if host is None or port is None:
        return  # "local" and "auto" are on this machine
    try:
        socket.create_connection((host, port), _CONNECT_SECONDS).close()
    except OSError as error:
        raise MlctlError(
            ErrorCode.CLUSTER_UNAVAILABLE,
            f"Ray at {address!r} does not respond: {error.strerror or error}",
        ) from error


def _handlers() -> dict[signal.Signals, Any]:
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}


@contextlib.contextmanager
def _translate_ray_errors() -> Iterator[None]:
    """Raise CLUSTER_UNAVAILABLE for failures of the cluster that outlast its retries."""
    try:
        yield
    except ray.exceptions.RayTaskError:
        raise  # a defect of mlctl or of the model's code
    except ray.exceptions.RayError as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise MlctlError(
            ErrorCode.CLUSTER_UNAVAILABLE,
            f"the Ray cluster lost a unit {_RETRIES + 1} times: {type(error).__name__}: {said}",
            "Committed units are kept. Ray's logs say why its workers die, such as out of memory; "
            "then run the same command again.",
        ) from error


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """Everything an actor needs; `files` are those of the model, as `read_files` reads them."""

    scoring: Scoring
    files: Files


class ScoringActor:
    """Commits one unit after the other; returns its marker, or the error of a job.

    It is returned, not raised, because Ray would wrap it in an error of its own. Ray makes a new
    actor of the same setup if the process dies.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup = setup
        self._folder = tempfile.TemporaryDirectory(prefix=PREFIX)
        self._worker: UnitWorker | None = None

    def open(self) -> MlctlError | None:
        """Load the model; return the error if it fails."""
        try:
            self._opened()
        except MlctlError as error:
            return error
        return None

    def process(self, unit: Unit) -> Marker | MlctlError | TooManyError:
        """Read, score and commit a unit."""
        try:
            return self._opened().process(unit)
        except (MlctlError, TooManyError) as error:
            return error

    def close(self) -> None:
        """Remove the files of the model."""
        self._folder.cleanup()

    def _opened(self) -> UnitWorker:
        if self._worker is None:
            scoring, folder = self._setup.scoring, Path(self._folder.name)
            write_files(folder, self._setup.files)
            model = verify_copies(scoring.model, lambda bundle: folder / bundle.name)
            self._worker = replace(scoring, model=model).open()
            if all(bundle.manifest.transform is None for bundle in bundles_of(model)):
                # All of it is loaded; only a transform may read its files later.
                self.close()
        return self._worker


def read_files(model: Scorable) -> Files:
    """Return the bytes of each file of the model, with its manifests, as BUNDLE/FILE."""
    return {
        f"{bundle.name}/{name}": np.fromfile(bundle.root / name, np.uint8)
        for bundle in bundles_of(model)
        for name in (MANIFEST_NAME, *(entry.path for entry in bundle.manifest.files))
    }


def write_files(folder: Path, files: Files) -> None:
    """Write what `read_files` read below `folder`."""
    for name, content in files.items():
        path = folder / check_relative(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        content.tofile(path)
