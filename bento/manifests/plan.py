"""What is to run where: everything that the manifests of a target are made of. Pure values."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from bento.containers.containerfile import GRPC_PORT, HTTP_PORT
from bento.manifests.resources import Resources
from bundle.errors import ErrorCode, MlctlError
from services.online.settings import ServerSettings

TOKEN_FOLDER = "/etc/mlctl/token"  # noqa: S105 - a folder
TOKEN_KEY = "tokens"  # noqa: S105 - a file in it
METRICS_KEY = "metrics"
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_HOST = re.compile(r"(\*\.)?[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_IMAGE_HINT = "Write HOST/NAME:TAG or HOST/NAME@sha256:DIGEST, in small letters but for the TAG."
_IMAGE = re.compile(r"[a-z0-9][\w.:/-]*(@sha256:[0-9a-f]{64})?")
_PASSWORD = re.compile(r"://[^@\s]*:[^@\s]+@|[?&]password=")
# What the manifests themselves decide, and what must not lie open in them.
_OURS = ("MLCTL_GRPC_", "MLCTL_TOKEN", "MLCTL_TLS_", "MLCTL_BUNDLE", "MLCTL_HOME")
# The longest suffix of a name that is made from ours.
_ROOM = len("-green")


class ManifestLayout(StrEnum):
    """Two Deployments for `mlctl promote` to choose between, or one."""

    BLUE_GREEN = "blue-green"
    SINGLE = "single"


class ManifestSlot(StrEnum):
    """The two Deployments of a layout for `mlctl promote`."""

    BLUE = "blue"
    GREEN = "green"


@dataclass(frozen=True, slots=True)
class ManifestModel:
    """The Bento that runs: `service` is its name in BentoML, `max_rows` the rows of a batch."""

    tag: str
    digest: str
    service: str
    max_rows: int


@dataclass(frozen=True, slots=True)
class Scaling:
    """How many replicas: a fixed number, or from `replicas` to `most` by the rows that wait.

    `wake` is a query that is above zero while anybody asks, with or without pods; without one, a
    server that was scaled to nothing stays there.
    """

    replicas: int = 2
    most: int | None = None
    wake: str | None = None
    prometheus: str = "http://prometheus-operated.monitoring:9090"

    def __post_init__(self) -> None:
        if self.most is None and self.replicas < 1:
            raise _invalid("no replicas: scaling to zero needs --max-replicas")
        if self.most is not None and self.most < max(self.replicas, 1):
            raise _invalid(f"at most {self.most} replicas, but at least {self.replicas}")
        if self.most is None and self.wake is not None:
            raise _invalid("--wake-query is for servers that are scaled: give --max-replicas")

    def require_waker(self) -> None:
        """INVALID_INPUT if it may be scaled to zero, and nobody would notice a request then."""
        if self.replicas == 0 and self.wake is None:
            raise _invalid(
                "nothing would start a server that was scaled to zero: its queue is counted by "
                "itself. Give --wake-query, or at least one replica"
            )


@dataclass(frozen=True, slots=True)
class Edge:
    """Who may reach it, and how: the Gateway ("NAME" or "NAMESPACE/NAME") and its host names.

    `grpc_host` is the name of a route for gRPC alone. `allow` are the namespaces and CIDRs that
    may connect, beside the server's own namespace.
    """

    gateway: str | None = None
    hosts: tuple[str, ...] = ()
    grpc_host: str | None = None
    allow: tuple[str, ...] = ("monitoring",)

    def __post_init__(self) -> None:
        for part in (self.gateway or "x").split("/", 1):
            _require(_LABEL, part, "the Gateway's name")
        for host in (*self.hosts, *([self.grpc_host] if self.grpc_host else [])):
            _require(_HOST, host, "the host name")
        if (self.hosts or self.grpc_host) and self.gateway is None:
            raise _invalid("host names need a Gateway: give --gateway")
        if self.grpc_host in self.hosts:
            raise _invalid(f"a Gateway does not take both kinds of routes for {self.grpc_host}")
        for each in self.allow:
            if "/" not in each:
                _require(_LABEL, each, "the namespace")
                continue
            try:
                ipaddress.ip_network(each)
            except ValueError as error:
                raise _invalid(f"{each!r} is not a CIDR: {error}") from error


@dataclass(frozen=True, slots=True)
class ManifestPlan:
    """All that manifests are made of. `settings` are the server's, by variable.

    `only` leaves out everything but one slot. `token_secret` is a Secret with the keys
    `tokens` (the token file) and `metrics` (one token).
    INVALID_INPUT for what no cluster would take.
    """

    name: str
    model: ManifestModel
    image: str
    resources: Resources
    namespace: str | None = None
    scaling: Scaling = field(default_factory=Scaling)
    edge: Edge = field(default_factory=Edge)
    layout: ManifestLayout = ManifestLayout.BLUE_GREEN
    only: ManifestSlot | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    token_secret: str | None = None

    def __post_init__(self) -> None:
        _require(_LABEL, self.name, "the name")
        if len(self.name) > 63 - _ROOM:
            raise _invalid(f"{self.name!r} is too long: give a --name of at most {63 - _ROOM}")
        for name in (self.namespace, self.token_secret):
            if name is not None:
                _require(_LABEL, name, "the namespace or Secret")
        if self.image:
            _require(_IMAGE, self.image, "the image", _IMAGE_HINT)
        for variable, value in self.settings.items():
            if variable.startswith(_OURS):
                raise _invalid(f"{variable} is not for --set: the manifests decide it")
            if _PASSWORD.search(value):
                raise _invalid(
                    f"{variable} has a password, and manifests are no place for one: leave it "
                    "out, and add it to the container's environment from a Secret"
                )
        if self.only is not None and self.layout is ManifestLayout.SINGLE:
            raise _invalid("a single Deployment has no slot: leave out --slot")
        if self.edge.grpc_host and self.layout is ManifestLayout.BLUE_GREEN:
            raise _invalid(
                "`mlctl promote` moves no GRPCRoute: with two slots gRPC goes through the "
                "HTTPRoute, on the same host. Leave out --grpc-hostname, or use --layout single"
            )

    @property
    def drain_seconds(self) -> int:
        """From the end of the traffic to the end of the process, at most."""
        deadline = float(self.settings.get("MLCTL_DEADLINE_MS", "30000")) / 1000.0
        return math.ceil(deadline) + _STOP_SECONDS

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the server, sorted."""
        ours = {
            "BENTOML_HOST": "0.0.0.0",  # noqa: S104 - a pod's own address
            "BENTOML_PORT": str(HTTP_PORT),
            "MLCTL_GRPC_HOST": "0.0.0.0",  # noqa: S104
            "MLCTL_GRPC_PORT": str(GRPC_PORT),
            "MLCTL_HOME": "/tmp/mlctl",  # noqa: S108 - the only place that can be written
        }
        if self.token_secret is not None:
            ours["MLCTL_TOKEN_FILE"] = f"{TOKEN_FOLDER}/{TOKEN_KEY}"
        return dict(sorted({**self.settings, **ours}.items()))


# A stopping server gives a batch whose callers have all had an answer 5 s, and as much to gRPC.
_STOP_SECONDS = 10


def name_of(model: str) -> str:
    """A name for a cluster from a model's, which may have dots and underscores."""
    return re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[: 63 - _ROOM].rstrip("-")


def settings_of(pairs: tuple[str, ...]) -> dict[str, str]:
    """The server's settings in "MLCTL_X=VALUE" each, checked as it will; INVALID_INPUT."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        field = ServerSettings.model_fields.get(name.removeprefix("MLCTL_").lower())
        if not equals or field is None or not name.startswith("MLCTL_"):
            raise _invalid(f"{pair!r} is not a setting of the server, as MLCTL_X=VALUE")
        try:
            form: Any = Annotated[field.annotation, field]
            TypeAdapter(form).validate_python(value)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_context=False)[0]["msg"]
            raise _invalid(f"{name}: {problem}") from error
        found[name] = value
    return found


def _require(form: re.Pattern[str], value: str, what: str, hint: str | None = None) -> None:
    if not form.fullmatch(value):
        raise _invalid(f"{what} {value!r} is not one", hint)


def _invalid(message: str, hint: str | None = None) -> MlctlError:
    return MlctlError(ErrorCode.INVALID_INPUT, message, hint)
