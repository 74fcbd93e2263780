"""The data plane and meter of a deployment in a cluster: an HTTPRoute's weights, its pods' counts.

Every write carries the resourceVersion that was read, and with it the daemon's epoch: one that
was replaced cannot write any more, however long it stood still in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Self

from mlctl.rollout.domain.interfaces import DataPlaneRejected, DataPlaneUnavailable, TrafficSplit
from mlctl.rollout.domain.kubernetes_target import KubernetesTarget
from mlctl.rollout.domain.spec import Endpoint, Slot
from mlctl.rollout.domain.traffic.counts import Reading
from mlctl.rollout.drivers.kubernetes import route as routes
from mlctl.rollout.drivers.kubernetes.cluster import Cluster, ConflictError
from mlctl.rollout.drivers.kubernetes.meter import ServiceSource, SourceMeter
from mlctl.rollout.drivers.kubernetes.route import Acceptance, Claim, Json, RouteUnfitError
from mlctl.rollout.journal.journal import StaleEpochError

_TRIES = 8
_PAUSE = 0.02
_ACCEPT_SECONDS = 5.0
_POLL_SECONDS = 0.1


class KubernetesDataPlane:
    """The data plane of `target`, written on behalf of `claim`; without one it only reads.

    `progress` is called after every question to the cluster.
    """

    def __init__(
        self,
        target: KubernetesTarget,
        claim: Claim | None,
        accept_seconds: float = _ACCEPT_SECONDS,
        progress: Callable[[], object] = lambda: None,
    ) -> None:
        self._target = target
        self._claim = claim
        self._accept_seconds = accept_seconds
        self._progress = progress
        self._opened: Cluster | None = None
        self._meter = SourceMeter(
            {c: ServiceSource(lambda: self.cluster, target.services[c]) for c in Slot}
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def cluster(self) -> Cluster:
        """The cluster; DataPlaneUnavailable if there is no usable configuration."""
        if self._opened is None:
            self._opened = Cluster(self._target, self._progress)
        return self._opened

    @property
    def can_mirror(self) -> bool:
        return False

    def weights(self) -> dict[Slot, int] | None:
        """The weights in the route; DataPlaneRejected if it has no rule of ours."""
        try:
            return routes.weights_of(self.cluster.route(self._target.route), self._target)
        except RouteUnfitError as error:
            raise self._unfit(error) from error

    def apply(self, traffic: TrafficSplit) -> None:
        """Make the weights hold and wait until the Gateways that report have accepted them.

        StaleEpochError if a later daemon wrote them. DataPlaneRejected for copies. Weights of a
        route are not sticky, and testers are sent by rules of the user's own.
        """
        if traffic.mirror:
            raise DataPlaneRejected(
                "copies of requests are not made in a cluster: leave out --shadow"
            )
        try:
            self._await_accepted(self._write(traffic.weights))
        except RouteUnfitError as error:
            raise self._unfit(error) from error

    def holder(self) -> str | None:
        """The deployment that the route belongs to; None if it is free."""
        try:
            claim = routes.claim_of(self.cluster.route(self._target.route))
        except RouteUnfitError as error:
            raise self._unfit(error) from error
        return None if claim is None else claim.holder

    def connect(self, slot: Slot, endpoints: tuple[Endpoint, ...]) -> None:
        """Nothing: a Service finds its pods by itself, and they are drained by the cluster."""

    def read(self) -> Reading:
        """Counts of the pods; see `SourceMeter.read`."""
        return self._meter.read()

    def _write(self, weights: Mapping[Slot, int]) -> Json:
        """The route with these weights in it."""
        if self._claim is None:
            raise DataPlaneUnavailable("this data plane was opened for reading only")
        for attempt in range(_TRIES):
            found = self.cluster.route(self._target.route)
            self._check(routes.claim_of(found), self._claim)
            patch = routes.patched(found, self._target, weights, self._claim)
            if patch is None:
                return found
            self._require_ready(found, weights)
            try:
                return self.cluster.patch_route(self._target.route, patch)
            except ConflictError:
                time.sleep(_PAUSE * (attempt + 1))
        raise DataPlaneUnavailable(f"others keep changing HTTPRoute {self._target.route}")

    def _check(self, found: Claim | None, ours: Claim) -> None:
        if found is None:
            return
        if found.holder != ours.holder:
            raise DataPlaneRejected(held_by_other(self._target, found.holder))
        if found.epoch > ours.epoch:
            raise StaleEpochError(f"epoch {ours.epoch} of HTTPRoute {self._target.route} is over")

    def _require_ready(self, found: Json, weights: Mapping[Slot, int]) -> None:
        """No more traffic for a slot without a ready pod, unless the other has none either."""
        before = routes.min_shares(found, self._target)
        for slot in Slot:
            if weights[slot] <= before[slot] or self._ready(slot):
                continue
            if self._ready(slot.other):
                service = self._target.services[slot]
                raise DataPlaneUnavailable(f"Service {service} has no ready pod: no traffic for it")

    def _ready(self, slot: Slot) -> bool:
        return any(pod.ready for pod in self.cluster.pods(self._target.services[slot]))

    def _await_accepted(self, found: Json) -> None:
        deadline = time.monotonic() + self._accept_seconds
        while True:
            state, why = routes.acceptance(found)
            if state is Acceptance.ACCEPTED:
                return
            if state is Acceptance.REJECTED:
                raise DataPlaneRejected(why)
            if time.monotonic() > deadline:
                raise DataPlaneUnavailable(why)
            time.sleep(_POLL_SECONDS)
            found = self.cluster.route(self._target.route)

    def _unfit(self, error: RouteUnfitError) -> DataPlaneRejected:
        return DataPlaneRejected(
            f"HTTPRoute {self._target.namespace}/{self._target.route}: {error}"
        )


def held_by_other(target: KubernetesTarget, holder: str) -> str:
    """Why the route is left alone, and what to do."""
    return (
        f"{target.where} belongs to another deployment ({holder}); if that one is gone, "
        f"remove the route's annotation {routes.HOLDER}"
    )
