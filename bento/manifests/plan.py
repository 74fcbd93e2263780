"""The plan of a deployment: every value that manifests are rendered from, checked. Pure."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import TypeAdapter, ValidationError

from mlctl.bento.containers.containerfile import GRPC_PORT, HTTP_PORT
from mlctl.bento.manifests.resources import Resources
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.online.settings import ServerSettings

TOKEN_FOLDER = "/etc/mlctl/token"  # noqa: S105 - a folder
TOKEN_KEY = "tokens"  # noqa: S105 - a file in it
METRICS_KEY = "metrics"
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LABEL_HINT = "Use at most 63 lower-case letters, digits and hyphens."
_HOST = re.compile(r"(\*\.)?[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_HOST_HINT = "Write it in lower case, like shop.example.com or *.example.com."
_IMAGE = re.compile(r"[a-z0-9][\w.:/-]*(@sha256:[0-9a-f]{64})?")
_IMAGE_HINT = "Write HOST/NAME:TAG or HOST/NAME@sha256:DIGEST, in lower case except for the TAG."
_PASSWORD = re.compile(r"://[^@\s]*:[^@\s]+@|[?&]password=")
# The manifests set these themselves, or a manifest must not show their values.
_RESERVED = ("MLCTL_GRPC_", "MLCTL_TOKEN", "MLCTL_TLS_", "MLCTL_BUNDLE", "MLCTL_HOME")
# A stopping server waits 5 s for a batch whose callers have their answers, and 5 s for gRPC.
_STOP_SECONDS = 10


class ManifestLayout(StrEnum):
    """Two Deployments that `mlctl promote` moves traffic between, or one."""

    BLUE_GREEN = "blue-green"
    SINGLE = "single"


class ManifestSlot(StrEnum):
    """The two Deployments of the blue-green layout."""

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
    """The number of replicas: fixed, or from `replicas` to `max_replicas` by the waiting rows.

    `wake_query` is a PromQL query that is above zero while requests arrive, with or without pods.
    A server that was scaled to zero does not start again without one. `prometheus` is a URL.
    """

    replicas: int = 2
    max_replicas: int | None = None
    wake_query: str | None = None
    prometheus: str = "http://prometheus-operated.monitoring:9090"

    def __post_init__(self) -> None:
        if self.max_replicas is None and self.replicas < 1:
            raise invalid("--replicas 0 (scale to zero) needs --max-replicas")
        if self.max_replicas is not None and self.max_replicas < max(self.replicas, 1):
            raise invalid(f"--max-replicas {self.max_replicas} is below {max(self.replicas, 1)}")
        if self.max_replicas is None and self.wake_query is not None:
            raise invalid("--wake-query needs --max-replicas: a fixed number does not scale")

    @property
    def upper_limit(self) -> int:
        """The largest number of replicas."""
        return self.replicas if self.max_replicas is None else self.max_replicas

    def require_wake_query(self) -> None:
        """Raise INVALID_INPUT if the server can scale to zero and a request cannot start it."""
        if self.replicas == 0 and self.wake_query is None:
            raise invalid(
                "a server that was scaled to zero would never start again: it counts its queue "
                "itself",
                "Give --wake-query, or --replicas 1.",
            )


@dataclass(frozen=True, slots=True)
class NetworkAccess:
    """The Gateway ("NAME" or "NAMESPACE/NAME"), its host names, and the permitted clients.

    `grpc_host` is the host name of a route for gRPC alone. `allow` are namespaces and CIDRs that
    may connect besides the server's own namespace.
    """

    gateway: str | None = None
    hosts: tuple[str, ...] = ()
    grpc_host: str | None = None
    allow: tuple[str, ...] = ("monitoring",)

    def __post_init__(self) -> None:
        for part in (self.gateway or "x").split("/", 1):
            _require(_LABEL, part, "name of a Gateway", _LABEL_HINT)
        for host in (*self.hosts, *([self.grpc_host] if self.grpc_host else [])):
            _require(_HOST, host, "host name", _HOST_HINT)
        if (self.hosts or self.grpc_host) and self.gateway is None:
            raise invalid("host names need --gateway")
        if self.grpc_host in self.hosts:
            raise invalid(f"{self.grpc_host} has an HTTPRoute; a GRPCRoute needs another host")
        for each in self.allow:
            if "/" not in each:
                _require(_LABEL, each, "namespace", _LABEL_HINT)
                continue
            try:
                ipaddress.ip_network(each)
            except ValueError as error:
                raise invalid(f"{each!r} is not a CIDR: {error}") from error

    @property
    def gateway_name(self) -> str:
        """The Gateway's name without its namespace."""
        return (self.gateway or "").rpartition("/")[2]

    @property
    def gateway_namespace(self) -> str:
        """The Gateway's namespace; empty if it is the server's own."""
        return (self.gateway or "").rpartition("/")[0]

    @property
    def sources(self) -> tuple[str, ...]:
        """Every namespace and CIDR that may connect, the Gateway's first, each once."""
        gateway = (self.gateway_namespace,) if self.gateway_namespace else ()
        return tuple(dict.fromkeys((*gateway, *self.allow)))


@dataclass(frozen=True, slots=True)
class ObjectsPlan:
    """What all objects of a cluster are rendered from; `settings` are variables of the process.

    INVALID_INPUT for what no cluster would accept.
    """

    max_name: ClassVar[int] = 63 - len("-green")  # the longest suffix of an object's name

    name: str
    model: ManifestModel
    image: str
    resources: Resources
    namespace: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_label(self.name, "name")
        if len(self.name) > self.max_name:
            length = len(self.name)
            raise invalid(f"the name {self.name!r} has {length} characters (limit {self.max_name})")
        if self.namespace is not None:
            require_label(self.namespace, "name of a namespace")
        if self.image:
            _require(_IMAGE, self.image, "reference to an image", _IMAGE_HINT)
        for variable, value in self.settings.items():
            if variable.startswith(_RESERVED):
                raise invalid(f"--set {variable}: the manifests set this variable themselves")
            require_no_password(value, f"--set {variable}")


@dataclass(frozen=True, slots=True)
class ManifestPlan(ObjectsPlan):
    """The server: `slot` leaves out everything but that slot.

    `token_secret` is a Secret with the keys `tokens` (the token file) and `metrics` (one token).
    """

    scaling: Scaling = field(default_factory=Scaling)
    access: NetworkAccess = field(default_factory=NetworkAccess)
    layout: ManifestLayout = ManifestLayout.BLUE_GREEN
    slot: ManifestSlot | None = None
    token_secret: str | None = None

    def __post_init__(self) -> None:
        ObjectsPlan.__post_init__(self)
        if self.token_secret is not None:
            require_label(self.token_secret, "name of a Secret")
        if self.slot is not None and self.layout is ManifestLayout.SINGLE:
            raise invalid("--layout single has no slots: leave out --slot")
        if self.access.grpc_host and self.layout is ManifestLayout.BLUE_GREEN:
            raise invalid(
                "--grpc-hostname needs --layout single: `mlctl promote` does not move a GRPCRoute",
                "With two slots, gRPC goes through the HTTPRoute, on the same host.",
            )

    @property
    def drain_seconds(self) -> int:
        """The longest time from the end of traffic to the end of the process."""
        deadline = float(self.settings.get("MLCTL_DEADLINE_MS", "30000")) / 1000.0
        return math.ceil(deadline) + _STOP_SECONDS

    @property
    def environment(self) -> dict[str, str]:
        """The server's environment variables, sorted."""
        fixed = {
            "BENTOML_HOST": "0.0.0.0",  # noqa: S104 - a pod's own address
            "BENTOML_PORT": str(HTTP_PORT),
            "MLCTL_GRPC_HOST": "0.0.0.0",  # noqa: S104
            "MLCTL_GRPC_PORT": str(GRPC_PORT),
            "MLCTL_HOME": "/tmp/mlctl",  # noqa: S108 - the only writable folder
        }
        if self.token_secret is not None:
            fixed["MLCTL_TOKEN_FILE"] = f"{TOKEN_FOLDER}/{TOKEN_KEY}"
        return dict(sorted({**self.settings, **fixed}.items()))

    @property
    def behind_gateway(self) -> ManifestPlan:
        """The plan with `MLCTL_PROXIED`, if a Gateway's proxy opens the connections to the server.

        The two slots have one: `mlctl promote` moves the weights of its route. A candidate's slot
        alone names none.
        """
        if self.access.gateway is None and self.layout is ManifestLayout.SINGLE:
            return self
        return replace(self, settings={"MLCTL_PROXIED": "1", **self.settings})

    @property
    def calls_other_servers(self) -> bool:
        """Whether a setting holds a URL, such as that of a trace collector."""
        return any("://" in value for value in self.settings.values())


def name_of(model: str) -> str:
    """Return a name for a cluster's objects from a model's, which may have dots, underscores."""
    return re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[: ObjectsPlan.max_name].rstrip("-")


def settings_of(pairs: tuple[str, ...]) -> dict[str, str]:
    """Return the settings in "MLCTL_X=VALUE" each, checked as the server does; INVALID_INPUT."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        setting = ServerSettings.model_fields.get(name.removeprefix("MLCTL_").lower())
        if not equals or setting is None or not name.startswith("MLCTL_"):
            raise invalid(f"{pair!r} is not a setting of the server", "Write MLCTL_X=VALUE.")
        try:
            form: Any = Annotated[setting.annotation, setting]
            TypeAdapter(form).validate_python(value)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_context=False)[0]["msg"]
            raise invalid(f"{name}: {problem}") from error
        found[name] = value
    return found


def require_label(value: str, kind: str) -> None:
    """Raise INVALID_INPUT for a name that no object of a cluster can have."""
    _require(_LABEL, value, kind, _LABEL_HINT)


def require_no_password(value: str, source: str) -> None:
    """Raise INVALID_INPUT if a URL in `value` has a password."""
    if _PASSWORD.search(value):
        raise invalid(
            f"{source}: the value has a password, which a manifest must not hold",
            "Leave it out, and add it to the container's environment from a Secret.",
        )


def _require(form: re.Pattern[str], value: str, kind: str, hint: str) -> None:
    if not form.fullmatch(value):
        raise invalid(f"{value!r} is not a valid {kind}", hint)


def invalid(message: str, hint: str | None = None) -> MlctlError:
    """Return the error about a value that a manifest cannot have."""
    return MlctlError(ErrorCode.INVALID_INPUT, message, hint)
