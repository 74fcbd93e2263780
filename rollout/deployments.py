"""Deployments as a client sees them: up, down, status, promote, follow, rollback, history.

Every call is short-lived and only writes wishes to the journal; the daemon acts. Each one that
finds the daemon dead or stuck replaces it: the former is killed before the new one starts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from bundle.errors import ErrorCode, MlctlError
from bundle.home import BENTO_HOME_VARIABLE, HOME_VARIABLE, bento_home, mlctl_home
from registry.tracking import TRACKING_VARIABLE, tracking_uri
from rollout import places, processes
from rollout.daemon import DAEMON
from rollout.envoy import EnvoyFiles, EnvoyPlane, envoy_command
from rollout.envoy_config import latency_edge
from rollout.journal import Journal
from rollout.launcher import free_ports, process_role, require_free, resolve_host
from rollout.model import Colour, Ports, Revision, RolloutSpec, Settings, check_name
from rollout.ports import PlaneUnavailable
from rollout.processes import ProcessRef
from rollout.records import ENDED, Deployment, Event, Rollout
from rollout.supervisor import ENVOY

_STUCK_SECONDS = 15.0
_POLL_SECONDS = 0.05
_DAEMON_CHECK_SECONDS = 2.0
_STOP_SECONDS = 10.0
_BENTO_FAILED = "the Bento did not become ready"


@dataclass(frozen=True, slots=True)
class Status:
    """A deployment now. `weights` and `healthy` are Envoy's own words, None if it is silent."""

    deployment: Deployment
    weights: dict[Colour, int] | None
    healthy: dict[Colour, bool] | None
    running: dict[str, bool]
    rollout: Rollout | None
    last: Event | None


def up(
    name: str,
    revision: Revision,
    port: int,
    *,
    host: str = "127.0.0.1",
    settings: Settings | None = None,
) -> Deployment:
    """Start Envoy, `revision` behind it and the daemon; return when it answers.

    The Bento store and the registry in force now stay the deployment's own. INVALID_INPUT,
    PORT_TAKEN and DEPLOYMENT_EXISTS before anything is started; NOT_READY with the tail of the
    log. A failure or an interrupt stops what was started.
    """
    check_name(name)
    settings = _at_home(settings or Settings())
    host = resolve_host(host)
    envoy_command(places.directory(name))  # RUNTIME_MISSING before anything is started
    with Journal(places.journal()) as journal:
        _check_free(journal, name, host, port)
        ports = Ports(port, free_ports(1)[0], host)
        places.heartbeat(name).unlink(missing_ok=True)
        journal.create(name, ports, settings, revision)
        try:
            EnvoyFiles(places.directory(name), ports).reset()
            _wait_ready(journal, name, settings)
        except BaseException:
            _take_down(journal, name)
            raise
        return journal.deployment(name)


def down(name: str) -> None:
    """Stop everything of the deployment; an active rollout ends as rolled back."""
    with Journal(places.journal()) as journal:
        _deployment(journal, name)
        _take_down(journal, name)


def status(name: str | None = None) -> tuple[Status, ...]:
    """How deployments are, one or all that are up. Replaces a dead daemon."""
    with Journal(places.journal()) as journal:
        wanted = journal.deployments() if name is None else (_deployment(journal, name),)
        for deployment in wanted:
            _ensure_daemon(journal, deployment.name)
        return tuple(_status(journal, deployment) for deployment in wanted)


def promote(name: str, revision: Revision, spec: RolloutSpec) -> int:
    """Ask for a rollout and return its id; `follow` it, or not.

    A latency limit between two exact edges is rounded up to one; the first event says so.
    DEPLOYMENT_NOT_FOUND, ALREADY_LIVE or ROLLOUT_ACTIVE.
    """
    counted = spec
    if spec.max_p99_ms is not None:
        counted = replace(spec, max_p99_ms=latency_edge(spec.max_p99_ms))
    with Journal(places.journal()) as journal:
        rollout = journal.begin(name, revision, counted, asked=spec)
        _ensure_daemon(journal, name)
        return rollout


def follow(name: str, rollout: int) -> Iterator[Event]:
    """The rollout's events from its begin, as they come, until it ended.

    NOT_FOUND if the deployment has no such rollout.
    """
    with Journal(places.journal()) as journal:
        if journal.rollout(rollout).deployment != name:
            raise MlctlError(ErrorCode.NOT_FOUND, f"{name!r} has no rollout {rollout}")
        seen, checked = 0, 0.0
        while True:
            for event in journal.events(name, after=seen, rollout=rollout):
                seen = event.seq
                yield event
                if event.kind == ENDED:
                    return
            if time.monotonic() - checked > _DAEMON_CHECK_SECONDS:
                checked = time.monotonic()
                _ensure_daemon(journal, name)
            time.sleep(_POLL_SECONDS)


def rollback(name: str, reason: str) -> int:
    """Take the active rollout back: one write of the weights. Its id; NOT_FOUND if none is."""
    with Journal(places.journal()) as journal:
        rollout = journal.request_rollback(name, reason)
        _ensure_daemon(journal, name)
        return rollout


def history(name: str) -> tuple[Rollout, ...]:
    """Every rollout of the deployment, newest first."""
    with Journal(places.journal()) as journal:
        journal.deployment(name)
        return journal.rollouts(name)


def events(name: str, after: int = 0, rollout: int | None = None) -> tuple[Event, ...]:
    """The record of a deployment, oldest first."""
    with Journal(places.journal()) as journal:
        return journal.events(name, after, rollout)


def _deployment(journal: Journal, name: str) -> Deployment:
    deployment = journal.deployment(name)
    if not deployment.up:
        raise MlctlError(ErrorCode.DEPLOYMENT_NOT_FOUND, f"deployment {name!r} is down")
    return deployment


def _check_free(journal: Journal, name: str, host: str, port: int) -> None:
    if any(deployment.name == name for deployment in journal.deployments()):
        raise MlctlError(ErrorCode.DEPLOYMENT_EXISTS, f"deployment {name!r} is up")
    require_free(host, port)


def _wait_ready(journal: Journal, name: str, settings: Settings) -> None:
    created = journal.last_event(name)
    begun = created.seq if created else 0
    daemon = _spawn_daemon(name, settings)
    deadline = time.monotonic() + settings.ready_seconds + _STOP_SECONDS
    while time.monotonic() < deadline:
        for event in journal.events(name, after=begun):
            if event.kind == "ready":
                return
            if event.kind == "start_failed":
                what = "Envoy did not start" if event.body["role"] == ENVOY else _BENTO_FAILED
                raise _not_ready(what, str(event.body["log"]))
        if not processes.alive(daemon):
            break
        time.sleep(_POLL_SECONDS)
    raise _not_ready(
        "the deployment did not become ready", processes.log_tail(places.daemon_log(name))
    )


def _not_ready(what: str, tail: str) -> MlctlError:
    return MlctlError(ErrorCode.NOT_READY, f"{what}; its log ends:\n{tail}")


def _ensure_daemon(journal: Journal, name: str) -> None:
    """Start a daemon unless one looks at the deployment; a stuck one is killed first."""
    found = journal.processes(name).get(DAEMON)
    heartbeat = places.heartbeat(name)
    if found is not None and processes.alive(found[0]):
        if not heartbeat.exists() or time.time() - heartbeat.stat().st_mtime < _STUCK_SECONDS:
            return
        processes.kill(found[0])
    _spawn_daemon(name, journal.deployment(name).settings)


def _spawn_daemon(name: str, settings: Settings) -> ProcessRef:
    role = process_role(places.directory(name), DAEMON)
    command = [sys.executable, "-P", "-m", "rollout.daemon", name]
    return processes.spawn(role, command, places.daemon_log(name), _environment(settings))


def _at_home(settings: Settings) -> Settings:
    """`settings` with the Bento store and the registry that are in force here."""
    return replace(
        settings,
        bento_home=settings.bento_home or str(bento_home()),
        tracking_uri=settings.tracking_uri or _absolute(tracking_uri()),
    )


def _absolute(uri: str) -> str:
    """A registry URI that means the same in every directory."""
    scheme, separator, path = uri.rpartition(":///")
    if separator and scheme == "sqlite":
        return f"{scheme}:///{Path(path).absolute()}"
    return uri if ":" in uri else str(Path(uri).absolute())


def _environment(settings: Settings) -> dict[str, str]:
    """What a daemon, and so its Bentos and its champion writer, must not take from a shell."""
    kept = {
        BENTO_HOME_VARIABLE: settings.bento_home,
        TRACKING_VARIABLE: settings.tracking_uri,
    }
    home = {HOME_VARIABLE: str(mlctl_home())}
    return {**home, **{name: value for name, value in kept.items() if value is not None}}


def _take_down(journal: Journal, name: str) -> None:
    """Fence the daemon out, then end daemon, Envoy and Bentos in this order."""
    journal.retire(name)
    found = journal.processes(name)
    for roles in ((DAEMON,), (ENVOY,), tuple(Colour)):
        _stop([found[role][0] for role in roles if role in found])
        for role in roles:
            processes.end_strays(process_role(places.directory(name), role))
            journal.drop_process(name, role)


def _stop(refs: list[ProcessRef]) -> None:
    for ref in refs:
        processes.terminate(ref)
    deadline = time.monotonic() + _STOP_SECONDS
    while time.monotonic() < deadline and any(map(processes.alive, refs)):
        time.sleep(_POLL_SECONDS)
    for ref in refs:
        processes.kill(ref)


def _status(journal: Journal, deployment: Deployment) -> Status:
    found = journal.processes(deployment.name)
    weights, healthy = _asked(deployment)
    return Status(
        deployment=deployment,
        weights=weights,
        healthy=healthy,
        running={role: processes.alive(ref) for role, (ref, _) in found.items()},
        rollout=journal.active(deployment.name),
        last=journal.last_event(deployment.name),
    )


def _asked(deployment: Deployment) -> tuple[dict[Colour, int] | None, dict[Colour, bool] | None]:
    files = EnvoyFiles(places.directory(deployment.name), deployment.ports)
    with EnvoyPlane(files, deployment.ports) as plane:
        try:
            return plane.weights(), dict(plane.read().healthy)
        except PlaneUnavailable:
            return None, None
