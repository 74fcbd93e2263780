"""Scoring on a Ray cluster: actors score, this process reads or names units, and commits.

Ray starts an actor again that died, and asks it again for what it had not answered, a bounded
number of times: a machine's fault costs time, never rows. Beyond that the job ends, and the
same command goes on after its last commit.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bundle.errors import ErrorCode, MlctlError
from bundle.packages import install_hint
from services.batch.base import Chunk, SplittableSource, Unit, UnitResult
from services.batch.executors.actor import Failure, ScoringActor, Unread, WorkerSetup, read_files
from services.batch.executors.scratch import sweep
from services.runtime.scorable import bundles_of

if TYPE_CHECKING:
    from services.batch.engine import Executor
    from services.batch.job import MakeExecutor, Scoring

LOCAL = "local"
# Units that an actor has before it, so that it need not wait for this process.
_AHEAD = 3
# How often a unit is asked for again whose actor died.
_RETRIES = 3
_CLOSE_SECONDS = 10.0
# Ray itself asks an address for minutes that nobody answers at.
_CONNECT_SECONDS = 5.0
logger = logging.getLogger("mlctl.batch")


@dataclass(frozen=True, slots=True)
class RayExecutor:
    """Scores with `actors` actors, or as many as the cluster has cores (GPUs for such a model).

    `address` is Ray's: "local" starts one on this machine, "ray://host:10001" is a client's.
    """

    scoring: Scoring
    address: str = LOCAL
    actors: int | None = None

    def results(self, work: Iterable[Chunk]) -> Generator[UnitResult, None, None]:
        """A result for each chunk, in the order in which they come; chunks are sent to actors."""
        return self._results(work, None, ())

    def reading(self, source: SplittableSource, columns: Sequence[str]) -> Executor[Unit]:
        """The same for units, which the actors read themselves."""
        return _Reading(self, source, tuple(columns))

    def _results(
        self,
        work: Iterable[Chunk | Unit],
        source: SplittableSource | None,
        columns: tuple[str, ...],
    ) -> Generator[UnitResult, None, None]:
        bundles = bundles_of(self.scoring.model)
        with connected(self.address, self.actors) as ray, _blamed(ray):
            files = read_files(self.scoring.model)
            errand = ray.put(WorkerSetup(self.scoring, files, source, columns))
            gpu = any(bundle.manifest.variant.target != "cpu" for bundle in bundles)
            with contextlib.closing(_Crew(ray, errand, self.actors, gpu=gpu)) as crew:
                reader = _Reader(source, columns)
                for item in work:
                    for answer in crew.until_free():
                        yield from reader.read_here(answer, crew)
                    crew.give(reader.chosen(item))
                while crew.busy:
                    for answer in crew.settled():
                        yield from reader.read_here(answer, crew)


@dataclass(slots=True)
class _Reader:
    """Who reads: the actors, until one of them cannot; from then on this process."""

    source: SplittableSource | None
    columns: tuple[str, ...]
    _here: bool = field(init=False, default=False)

    def chosen(self, work: Chunk | Unit) -> Chunk | Unit:
        """What an actor is given of `work`: rows, or the unit that it is to read."""
        return self._read(work) if self._here and isinstance(work, Unit) else work

    def read_here(self, answer: UnitResult | Unread, crew: _Crew) -> Iterator[UnitResult]:
        """The answer; a unit that could not be read there is read here and given again."""
        if not isinstance(answer, Unread):
            yield answer
            return
        if not self._here:
            self._here = True
            logger.warning(
                "an actor of Ray cannot read %s: this process reads it from now on, and sends the "
                "rows (%s)", answer.unit.origin, answer.reason
            )  # fmt: skip
        crew.give(self._read(answer.unit))

    def _read(self, unit: Unit) -> Chunk:
        assert self.source is not None
        return self.source.read(unit, self.columns)


@dataclass(frozen=True, slots=True)
class _Reading:
    """An executor of units, read where they are scored."""

    inner: RayExecutor
    source: SplittableSource
    columns: tuple[str, ...]

    def results(self, work: Iterable[Unit]) -> Generator[UnitResult, None, None]:
        return self.inner._results(work, self.source, self.columns)  # noqa: SLF001


@dataclass(slots=True)
class _Crew:
    """The actors, and who does what. An actor is `free` once for each unit that it may take."""

    ray: Any
    errand: Any
    count: int | None
    gpu: bool
    _free: list[Any] = field(init=False, default_factory=list)
    _busy: dict[Any, Any] = field(init=False, default_factory=dict)
    _opening: dict[Any, Any] = field(init=False, default_factory=dict)
    _actors: list[Any] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        kind, resource = ("GPU", "num_gpus") if self.gpu else ("CPU", "num_cpus")
        count = self.count or int(self.ray.cluster_resources().get(kind, 0))
        if count < 1:
            raise MlctlError(
                ErrorCode.CLUSTER_UNAVAILABLE,
                f"the Ray cluster has no {kind}",
                "Give --ray-actors, for a cluster that grows when it is asked to.",
            )
        options = {resource: 1, "max_restarts": -1, "max_task_retries": _RETRIES}
        made = self.ray.remote(**options)(ScoringActor)
        for _ in range(count):
            actor = made.remote(self.ray.get)
            self._actors.append(actor)
            # One that finds no place yet is given no work.
            self._opening[actor.open.remote([self.errand])] = actor

    def give(self, item: Chunk | Unit) -> None:
        """Have a free actor score `item`."""
        actor = self._free.pop(0)
        self._busy[actor.score.remote([self.errand], item)] = actor

    @property
    def busy(self) -> bool:
        """Whether there are answers still to come."""
        return bool(self._busy)

    def until_free(self) -> Iterator[UnitResult | Unread]:
        """Answers that come until an actor may take another unit."""
        while not self._free:
            yield from self.settled()

    def close(self) -> None:
        """End the actors; what they were doing is lost."""
        asked = [actor.close.remote() for actor in self._opened()]
        with contextlib.suppress(self.ray.exceptions.RayError):
            self.ray.wait(asked, num_returns=len(asked), timeout=_CLOSE_SECONDS) if asked else None
        for actor in self._actors:
            self.ray.kill(actor)
        # Those of actors that died, if they were on this machine.
        sweep()

    def _opened(self) -> list[Any]:
        """The actors that have a place."""
        opening = set(map(id, self._opening.values()))
        return [actor for actor in self._actors if id(actor) not in opening]

    def settled(self) -> Iterator[UnitResult | Unread]:
        """Wait for any answer, and take it."""
        (ready,), _later = self.ray.wait([*self._busy, *self._opening], num_returns=1)
        answer = self.ray.get(ready)
        if isinstance(answer, Failure):
            raise answer.error()
        if ready in self._opening:
            self._free += [self._opening.pop(ready)] * _AHEAD
            return
        self._free.append(self._busy.pop(ready))
        yield answer


def ray_executor(address: str | None, actors: int | None) -> MakeExecutor:
    """Makes the executor of `--executor ray`; RUNTIME_MISSING without the package."""
    _require_ray()

    def make(scoring: Scoring) -> RayExecutor:
        return RayExecutor(scoring, address or LOCAL, actors)

    return make


@contextlib.contextmanager
def connected(address: str, cores: int | None) -> Iterator[Any]:
    """Ray, connected to `address` for as long as it lasts; as it is where it was connected before.

    UNAVAILABLE if nobody answers there. A local one has `cores` cores, or those of the machine.
    """
    ray = _require_ray()
    if ray.is_initialized():
        yield ray
        return
    local = {"num_cpus": cores, "include_dashboard": False} if address == LOCAL else {}
    check_reachable(address)
    handlers = _handlers()
    try:
        ray.init(address, log_to_driver=False, logging_level="ERROR", **local)
    except Exception as error:  # a plain one where its own processes are too slow to start
        said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise MlctlError(
            ErrorCode.CLUSTER_UNAVAILABLE, f"Ray at {address!r} does not answer: {said}"
        ) from error
    finally:
        # It sets its own, but the job is to end in its own way.
        for number, handler in handlers.items():
            signal.signal(number, handler)
    try:
        yield ray
    finally:
        ray.shutdown()


def check_reachable(address: str) -> None:
    """CLUSTER_UNAVAILABLE if nobody listens at the host and port of `address`, if it has them."""
    place = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = place.hostname, place.port
    except ValueError:
        host, port = None, None
    if host is None or port is None:
        return  # "local" and "auto": Ray looks on this machine
    try:
        socket.create_connection((host, port), _CONNECT_SECONDS).close()
    except OSError as error:
        raise MlctlError(
            ErrorCode.CLUSTER_UNAVAILABLE,
            f"Ray at {address!r} does not answer: {error.strerror or error}",
        ) from error


def _handlers() -> dict[signal.Signals, Any]:
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}


@contextlib.contextmanager
def _blamed(ray: Any) -> Iterator[None]:
    """What the cluster could not do, even when asked again, ends the job so that it can go on."""
    try:
        yield
    except ray.exceptions.RayTaskError:
        raise  # a defect of ours, or of the model's code: told as it is
    except ray.exceptions.RayError as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise MlctlError(
            ErrorCode.CLUSTER_UNAVAILABLE,
            f"the Ray cluster lost a unit {_RETRIES + 1} times: {type(error).__name__}: {said}",
            "What is committed is kept. See Ray's logs for why its workers die, such as for want "
            "of memory; then run the same command again.",
        ) from error


def _require_ray() -> Any:
    # It would tell its makers about this cluster.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # As it will be: devices that nobody asked for stay visible, and it does not warn.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        raise MlctlError(
            ErrorCode.RUNTIME_MISSING, "--executor ray needs Ray", install_hint("ray")
        ) from error
    return ray
