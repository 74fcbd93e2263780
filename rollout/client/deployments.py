"""What clients do with deployments: up, down, status, promote, follow, rollback, history.

Every call is short-lived and only writes commands to the journal; the daemon acts. Each one that
finds the daemon dead or stuck replaces it: the former is killed before the new one starts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.home import bento_home
from mlctl.core.ports import free_ports, require_free, resolve_host
from mlctl.registry.tracking import tracking_uri
from mlctl.rollout.client.lifecycle import (
    POLL_SECONDS,
    ensure_daemon,
    spawn_daemon,
    take_down,
    wait_until,
)
from mlctl.rollout.domain.interfaces import DataPlaneRejected, DataPlaneUnavailable
from mlctl.rollout.domain.machine.state_machine import RolloutPhase
from mlctl.rollout.domain.operator_commands import OperatorCommand
from mlctl.rollout.domain.process_ref import NO_PROCESS, PROXY
from mlctl.rollout.domain.shadow import agreement, labels
from mlctl.rollout.domain.spec import (
    LOOPBACK,
    DeploymentSettings,
    Ports,
    Revision,
    RolloutSpec,
    Slot,
    check_name,
)
from mlctl.rollout.domain.traffic import slo
from mlctl.rollout.domain.traffic.split import SplitRecord
from mlctl.rollout.drivers.local import processes
from mlctl.rollout.drivers.local.activator import awake
from mlctl.rollout.drivers.local.samples import sample_folder
from mlctl.rollout.drivers.local.security_settings import (
    with_signer,
    with_token,
    with_webhook_secret,
)
from mlctl.rollout.drivers.local.server_settings import with_server_settings
from mlctl.rollout.drivers.proxies import edges_of, proxy_of
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.records import ENDED, Deployment, JournalEvent, Rollout

_PAGE = 500
_DAEMON_CHECK_SECONDS = 2.0
_STOP_SECONDS = 10.0
_FINAL_SECONDS = 5.0
_BENTO_FAILED = "the Bento did not become ready"


@dataclass(frozen=True, slots=True)
class DeploymentStatus:
    """A deployment now; `weights` and `healthy` are None if its proxy does not answer.

    `measured` is the record of a split, None without one.
    """

    deployment: Deployment
    weights: dict[Slot, int] | None
    healthy: dict[Slot, bool] | None
    running: dict[str, bool]
    rollout: Rollout | None
    last: JournalEvent | None
    measured: SplitRecord | None


def up(
    name: str,
    revision: Revision,
    port: int,
    *,
    host: str = "127.0.0.1",
    settings: DeploymentSettings | None = None,
) -> Deployment:
    """Start the proxy, `revision` behind it and the daemon; return when it answers.

    The Bento store and the registry in force now stay the deployment's own. INVALID_INPUT,
    PORT_TAKEN and DEPLOYMENT_EXISTS before anything is started; NOT_READY with the tail of the
    log. A failure or an interrupt stops what was started.
    """
    check_name(name)
    settings = awake(_at_home(settings or DeploymentSettings()))
    with Journal(paths.journal()) as journal:
        _check_free(journal, name)
        paths.require_writable(name)
        ports = _ports(host, port, settings)
        _check_metrics(settings, ports)
        settings = with_signer(with_token(name, with_webhook_secret(name, settings)))
        if settings.kubernetes is None:
            settings = with_server_settings(name, settings)
        proxy = proxy_of(paths.directory(name), ports, settings)
        proxy.command()  # reports what is missing before anything is started
        paths.heartbeat(name).unlink(missing_ok=True)
        journal.create(name, ports, settings, revision)
        try:
            proxy.reset()
            _wait_ready(journal, name, settings)
        except BaseException:
            take_down(journal, name)
            raise
        return journal.deployment(name)


def bring_back(name: str) -> Deployment:
    """Start a deployment again that is down, with what it served, where it listened and its
    settings; for one that is up, wait until it answers. DEPLOYMENT_NOT_FOUND, and what `up` raises.
    """
    with Journal(paths.journal()) as journal:
        former = journal.deployment(name)
        if former.up:
            _await_again(journal, former)
            return journal.deployment(name)
    ports, settings = former.ports, awake(former.settings)
    return up(name, former.live, ports.listen, host=ports.host, settings=settings)


def bring_back_all() -> tuple[Deployment, ...]:
    """Start every deployment again that is up by the record; for a machine that has booted.

    All are started before one is waited for. NOT_READY names the first that does not come.
    """
    with Journal(paths.journal()) as journal:
        wanted = journal.deployments()
        for deployment in wanted:
            ensure_daemon(journal, deployment.name)
    return tuple(bring_back(deployment.name) for deployment in wanted)


def down(name: str) -> None:
    """Stop everything of the deployment; an active rollout ends as rolled back."""
    with Journal(paths.journal()) as journal:
        journal.live_deployment(name)
        take_down(journal, name)


def status(name: str | None = None) -> tuple[DeploymentStatus, ...]:
    """Return the state of one deployment, or of all that are up. Replaces a dead daemon."""
    with Journal(paths.journal()) as journal:
        wanted = journal.deployments() if name is None else (journal.live_deployment(name),)
        for deployment in wanted:
            ensure_daemon(journal, deployment.name)
        return tuple(_status(journal, deployment) for deployment in wanted)


def promote(name: str, revision: Revision, spec: RolloutSpec) -> int:
    """Request a rollout and return its id.

    A latency limit between two exact edges is rounded up to one; the first event says so.
    Without a limit of its own a candidate made from live's very source has to agree with it.
    DEPLOYMENT_NOT_FOUND, ALREADY_LIVE, ROLLOUT_ACTIVE, INCOMPATIBLE_INTERFACE, WORSE_EVIDENCE;
    INVALID_INPUT for an agreement or an accuracy that nothing could show.
    """
    with Journal(paths.journal()) as journal:
        deployment = journal.deployment(name)
        paths.require_writable(name)
        remote = deployment.settings.kubernetes is not None
        if spec.sticky and remote:
            raise MlctlError(
                ErrorCode.INVALID_INPUT, "the weights of an HTTPRoute are not sticky: no --sticky"
            )
        if spec.times_answers and remote:
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                "the daemon reads no metrics of Pods: no --max-ttft-ms and --max-tpot-ms",
            )
        can_record = (
            not remote and sample_folder(paths.directory(name), deployment.settings) is not None
        )
        labels.require_recording(spec, can_record=can_record)
        agreement.require_copies(spec, can_copy=not remote)
        counted = slo.counted(spec, edges_of(deployment.settings))
        counted = agreement.by_default(counted, deployment.live, revision)
        rollout = journal.begin(name, revision, counted, requested=spec)
        ensure_daemon(journal, name)
        return rollout


def follow(name: str, rollout: int, after: int = 0) -> Iterator[JournalEvent]:
    """Yield the rollout's events from its start, or after one, as they come, until it ends.

    The last event is the one that ends it; after a promotion it waits until the alias was written
    or could not be. NOT_FOUND if the deployment has no such rollout.
    """
    with Journal(paths.journal()) as journal:
        if journal.rollout(rollout).deployment != name:
            raise MlctlError(ErrorCode.NOT_FOUND, f"{name!r} has no rollout {rollout}")
        seen, checked = after, 0.0
        ended: JournalEvent | None = None
        while True:
            page = journal.events(name, after=seen, rollout=rollout, limit=_PAGE)
            for event in page:
                seen = event.seq
                if event.kind == ENDED:
                    ended = event
                else:
                    yield event
            if len(page) == _PAGE:
                continue
            if ended is not None and not alias_pending(journal, rollout):
                yield ended
                return
            if time.monotonic() - checked > _DAEMON_CHECK_SECONDS:
                checked = time.monotonic()
                ensure_daemon(journal, name)
            time.sleep(POLL_SECONDS)


def rollback(name: str, reason: str) -> Rollout:
    """Request the rollback of the active rollout, or of the last promotion; return the rollout.

    For a promotion that has ended this is a new rollout, to the previous version; `reverts` says
    which promotion it takes back. NOT_FOUND if there is nothing to take back.
    """
    with Journal(paths.journal()) as journal:
        _await_final(journal, name)
        rollout = journal.request(name, OperatorCommand.ROLLBACK, reason)
        ensure_daemon(journal, name)
        return journal.rollout(rollout)


def _await_final(journal: Journal, name: str) -> None:
    """Wait shortly for the end of a promotion that is being recorded, so that it can revert it."""

    def settled() -> bool:
        active = journal.active(name)
        return active is None or active.progress.phase is not RolloutPhase.FINALIZE

    wait_until(settled, _FINAL_SECONDS)


def send_command(name: str, command: OperatorCommand, reason: str) -> JournalEvent:
    """Send a command to the active rollout and return the event that confirms it.

    NOT_FOUND if no rollout can take it; the event that ends it, if it ended before.
    """
    with Journal(paths.journal()) as journal:
        before = journal.newest(name)
        rollout = journal.request(name, command, reason)
    done = follow(name, rollout, after=before.seq if before else 0)
    return next(
        event for event in done if event.body.get("command") == command or event.kind == ENDED
    )


def alias_pending(journal: Journal, rollout: int) -> bool:
    """Whether the alias of a rollout that made its candidate live is still to be written."""
    found = journal.rollout(rollout)
    if found.outcome is None or not found.outcome.replaces_live or not found.spec.alias:
        return False
    deployment = journal.deployment(found.deployment)
    if not deployment.up or journal.promotion(found.deployment) != rollout:
        return False  # another revision is live by now
    return deployment.champion != found.candidate.digest and not any(
        event.kind == "champion_failed"
        for event in journal.events(found.deployment, rollout=rollout, ticks=False)
    )


def history(name: str) -> tuple[Rollout, ...]:
    """Every rollout of the deployment, newest first."""
    with Journal(paths.journal()) as journal:
        journal.deployment(name)
        return journal.rollouts(name)


def events(
    name: str, after: int = 0, rollout: int | None = None, *, ticks: bool = True
) -> tuple[JournalEvent, ...]:
    """Return the events of a deployment, oldest first, with or without its ticks."""
    with Journal(paths.journal()) as journal:
        return journal.events(name, after, rollout, ticks=ticks)


def record(name: str, *, ticks: bool = False, follow: bool = False) -> Iterator[JournalEvent]:
    """Yield the events of a deployment, oldest first; with `follow` also those to come, for ever.

    DEPLOYMENT_NOT_FOUND.
    """
    with Journal(paths.journal()) as journal:
        journal.deployment(name)
        seen = 0
        while True:
            page = journal.events(name, seen, ticks=ticks, limit=_PAGE)
            yield from page
            if page:
                seen = page[-1].seq
            elif follow:
                time.sleep(POLL_SECONDS)
            else:
                return


def _check_free(journal: Journal, name: str) -> None:
    if any(deployment.name == name for deployment in journal.deployments()):
        raise MlctlError(ErrorCode.DEPLOYMENT_EXISTS, f"deployment {name!r} is up")


def _ports(host: str, port: int, settings: DeploymentSettings) -> Ports:
    """Where the proxy is to listen; PORT_TAKEN. In a cluster the Gateway listens."""
    if settings.kubernetes is not None:
        return Ports(0, 0)
    address = resolve_host(host)
    require_free(address, port)
    return Ports(port, free_ports(1)[0], address)


def _check_metrics(settings: DeploymentSettings, ports: Ports) -> None:
    """INVALID_INPUT or PORT_TAKEN if the metrics cannot be at their port."""
    port = settings.metrics_port
    if port is None:
        return
    if port == ports.listen:
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"port {port} is for the requests: give another for metrics"
        )
    require_free(LOOPBACK, port)


def _await_again(journal: Journal, deployment: Deployment) -> None:
    """Wait until a deployment that should be up answers; NOT_READY."""
    ensure_daemon(journal, deployment.name)

    def answers() -> bool:
        _, healthy = _proxy_state(deployment)
        return healthy is not None and healthy[deployment.slot]

    if wait_until(answers, deployment.settings.ready_seconds + _STOP_SECONDS):
        return
    raise _not_ready(
        f"{deployment.name!r} did not become ready again",
        processes.log_tail(paths.daemon_log(deployment.name)),
    )


def _wait_ready(journal: Journal, name: str, settings: DeploymentSettings) -> None:
    created = journal.newest(name)
    begun = created.seq if created else 0
    daemon = spawn_daemon(name, settings)
    deadline = time.monotonic() + settings.ready_seconds + _STOP_SECONDS
    while time.monotonic() < deadline:
        for event in journal.events(name, after=begun):
            if event.kind == "ready":
                return
            if event.kind == "start_failed":
                what = "the proxy did not start" if event.body["role"] == PROXY else _BENTO_FAILED
                raise _not_ready(what, str(event.body["log"]))
        if not processes.alive(daemon):
            break
        time.sleep(POLL_SECONDS)
    raise _not_ready(
        "the deployment did not become ready", processes.log_tail(paths.daemon_log(name))
    )


def _not_ready(problem: str, tail: str) -> MlctlError:
    return MlctlError(ErrorCode.NOT_READY, f"{problem}; its log ends:\n{tail}")


def _at_home(settings: DeploymentSettings) -> DeploymentSettings:
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


def _status(journal: Journal, deployment: Deployment) -> DeploymentStatus:
    found = journal.processes(deployment.name)
    weights, healthy = _proxy_state(deployment)
    return DeploymentStatus(
        deployment=deployment,
        weights=weights,
        healthy=healthy,
        running={
            role: processes.alive(ref) for role, (ref, _) in found.items() if ref.pid != NO_PROCESS
        },
        rollout=journal.active(deployment.name),
        last=journal.newest(deployment.name),
        measured=None if deployment.split is None else journal.split_record(deployment.name),
    )


def _proxy_state(deployment: Deployment) -> tuple[dict[Slot, int] | None, dict[Slot, bool] | None]:
    directory = paths.directory(deployment.name)
    with proxy_of(directory, deployment.ports, deployment.settings).data_plane() as data_plane:
        try:
            return data_plane.weights(), dict(data_plane.read().healthy)
        except (DataPlaneUnavailable, DataPlaneRejected):  # in a cluster the route may be gone
            return None, None
