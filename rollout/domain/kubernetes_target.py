"""Which route and which Services of a cluster a deployment is made of. A pure value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from mlctl.core.errors import ErrorCode, MlctlError

_LABEL = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_ACCESS = ("api", "direct")


@dataclass(frozen=True)
class Reach:
    """How a namespace of a cluster is reached.

    Attributes:
        pods: how pods are reached: "api" through the API server, which works wherever kubectl
            does, "direct" at their own addresses, which works inside the cluster.
        context: the kubeconfig's context; None for its current one, or for the pod's own account.
        kubeconfig: the file's path; None for the pod's own account, or the usual file.
    """

    namespace: str
    pods: str = field(default=_ACCESS[0], kw_only=True)
    context: str | None = field(default=None, kw_only=True)
    kubeconfig: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _require_name("namespace", self.namespace)
        if self.pods not in _ACCESS:
            raise _invalid(f"pods = {self.pods!r}: give one of {', '.join(_ACCESS)}")


@dataclass(frozen=True)
class KubernetesTarget(Reach):
    """An HTTPRoute and the Services of both slots, all in one namespace."""

    route: str
    blue: str
    green: str

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("route", "blue", "green"):
            _require_name(name, getattr(self, name))
        if self.blue == self.green:
            raise _invalid(f"blue and green are both the Service {self.blue!r}")

    @property
    def where(self) -> str:
        """Return its name for messages."""
        return f"HTTPRoute {self.namespace}/{self.route}"

    @property
    def services(self) -> Mapping[str, str]:
        """The Service of each slot, by the slot's name."""
        return {"blue": self.blue, "green": self.green}


def services_from(text: str) -> tuple[str, str]:
    """Blue's and green's Service in "blue=NAME,green=NAME"; INVALID_INPUT."""
    parts = dict(part.partition("=")[::2] for part in text.split(","))
    if set(parts) != {"blue", "green"}:
        raise _invalid(f"{text!r} does not name both Services: give blue=NAME,green=NAME")
    return parts["blue"], parts["green"]


def _require_name(name: str, value: str) -> None:
    if not _LABEL.fullmatch(value):
        raise _invalid(f"{name} = {value!r} is not a Kubernetes name")


def _invalid(message: str) -> MlctlError:
    return MlctlError(ErrorCode.INVALID_INPUT, message)
