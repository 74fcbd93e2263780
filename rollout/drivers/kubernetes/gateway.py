"""A cluster's Gateway in the place of a proxy: there is nothing to run, only rights to check."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import write_atomic
from mlctl.core.packages import install_hint
from mlctl.rollout.domain.interfaces import DataPlaneRejected, DataPlaneUnavailable
from mlctl.rollout.domain.kubernetes_target import KubernetesTarget
from mlctl.rollout.domain.spec import Slot
from mlctl.rollout.journal import paths

if TYPE_CHECKING:
    from mlctl.rollout.drivers.kubernetes.data_plane import KubernetesDataPlane


class Gateway:
    """The Gateway that `target`'s route belongs to, for the deployment in `directory`."""

    def __init__(self, directory: Path, target: KubernetesTarget, epoch: int | None) -> None:
        self._holder = directory / "holder"
        self._target = target
        self._epoch = epoch

    def command(self) -> list[str]:
        """Nothing to run, but the route must be there and fit.

        RUNTIME_MISSING, INVALID_INPUT, UNAVAILABLE.
        """
        try:
            with self.data_plane() as data_plane:
                data_plane.weights()
                self._require_free(data_plane.holder())
                for service in self._target.services.values():
                    data_plane.cluster.pods(service)
        except DataPlaneRejected as error:
            raise MlctlError(ErrorCode.INVALID_INPUT, str(error)) from error
        except DataPlaneUnavailable as error:
            raise MlctlError(ErrorCode.UNAVAILABLE, str(error)) from error
        return []

    def prepare(self, live: Slot) -> None:
        """Nothing: a Gateway is there before us."""

    def reset(self) -> None:
        """Nothing: the route stays as it is until the daemon's first tick."""

    def data_plane(self) -> KubernetesDataPlane:
        """Reach it; RUNTIME_MISSING without the extra `kubernetes`."""
        try:
            from mlctl.rollout.drivers.kubernetes.data_plane import KubernetesDataPlane
            from mlctl.rollout.drivers.kubernetes.route import Claim
        except ImportError as error:
            raise MlctlError(
                ErrorCode.RUNTIME_MISSING,
                "lightkube is not installed",
                install_hint("kubernetes"),
            ) from error
        if self._epoch is None:
            return KubernetesDataPlane(self._target, None)
        # A tick with a slow cluster takes long; the daemon that waits for it is not stuck.
        beat = paths.heartbeat(self._holder.parent.name).touch
        return KubernetesDataPlane(self._target, Claim(self._name(), self._epoch), progress=beat)

    def _require_free(self, holder: str | None) -> None:
        if holder is not None and holder != self._name():
            from mlctl.rollout.drivers.kubernetes.data_plane import held_by_other

            raise DataPlaneRejected(held_by_other(self._target, holder))

    def _name(self) -> str:
        """Return the identity of this deployment among the writers of the route; made once."""
        if not self._holder.exists():
            text = f"{self._holder.parent.name}-{uuid.uuid4().hex[:12]}"
            write_atomic(self._holder, text.encode(), mode=0o600)
        return self._holder.read_text().strip()
