"""Envoy's configuration: the bootstrap as YAML, other files as documents; no I/O here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mlctl.core.errors import ERROR_TABLE, ErrorCode
from mlctl.core.tls import TlsFiles
from mlctl.rollout.domain.spec import Endpoint, Ports, Slot
from mlctl.rollout.domain.traffic.counts import LATENCY_EDGES_MS
from mlctl.rollout.drivers.envoy import names
from mlctl.rollout.drivers.envoy.names import Document, own_cluster
from mlctl.rollout.drivers.envoy.routes import ROUTE_NAME, ROUTES_FILE

INFER_SERVICE = "inference.GRPCInferenceService"
INFER_METHODS = ("ModelInfer", "ModelStreamInfer")
SECRET_FILE = "certificate.json"  # noqa: S105 - the name of a file
_SECRET = "certificate"  # noqa: S105
# Requests on one connection to a server, and to one with several processes: the kernel divides its
# connections among them. More on a connection cost less.
_MAX_STREAMS = 128
_MAX_SHARED_STREAMS = 1
_NO_SERVER = ErrorCode.UNAVAILABLE, "no server of the deployment can answer now"
# What Envoy answers without a server: the code and the message. None has a percent sign, which
# Envoy would read as a command.
_LOCAL_REPLIES: Mapping[int, tuple[ErrorCode, str]] = MappingProxyType(
    {
        404: (ErrorCode.NOT_FOUND, "there is no such path"),
        431: (ErrorCode.PAYLOAD_TOO_LARGE, "the request's head is larger than the proxy accepts"),
        503: _NO_SERVER,
        504: (ErrorCode.DEADLINE_EXCEEDED, "the server did not answer in time"),
        # A retry of a request of which more arrived than is kept. There is no 413: nothing waits
        # for a whole body.
        507: _NO_SERVER,
    }
)
_RETRIED = frozenset({503, 507})
# mlctl.core.tls.CIPHERS by their own names: Envoy takes no groups.
_CIPHER_NAMES = tuple(
    f"ECDHE-{key}-{cipher}"
    for key in ("ECDSA", "RSA")
    for cipher in ("AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305")
)


def bootstrap(
    ports: Ports,
    routes: Path,
    endpoints: Path,
    tls: TlsFiles | None = None,
    secret: Path = Path(),
    workers: int = 1,
) -> str:
    """Return the static part as YAML: admin on loopback, the listener, the clusters.

    `routes` and `endpoints` are absolute directories, watched for renames into them; `secret` is
    the file of `secret_table` where the listener has TLS. Each server has `workers` processes.
    """
    text: str = _template().render(
        ports=ports,
        routes=routes,
        endpoints=endpoints,
        tls=tls,
        secret=secret,
        secret_name=_SECRET,
        ciphers=_CIPHER_NAMES,
        slots=tuple(Slot),
        edges=LATENCY_EDGES_MS,
        infer_service=INFER_SERVICE,
        infer_methods=INFER_METHODS,
        route_name=ROUTE_NAME,
        local_replies=local_replies(),
        retried=_RETRIED,
        routes_file=ROUTES_FILE,
        protocols=names.PROTOCOLS,
        kinds=names.KINDS,
        max_streams=_MAX_STREAMS if workers == 1 else _MAX_SHARED_STREAMS,
        proxy_zone=names.PROXY_ZONE,
        own_cluster=own_cluster,
        first_cluster=names.first_cluster,
        stream_cluster=names.stream_cluster,
        tester_cluster=names.tester_cluster,
        shadow_cluster=names.shadow_cluster,
        endpoints_file=names.endpoints_file,
    )
    return text


def local_replies() -> dict[int, Document]:
    """Return the bodies of Envoy's own answers by status, in the form of the server's errors."""
    return {
        status: {"error": message, "code": code.value, "hint": ERROR_TABLE[code].hint}
        for status, (code, message) in _LOCAL_REPLIES.items()
    }


@cache
def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(  # noqa: S701 - YAML, and all text in it is JSON
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # YAML has no pairs of surrogates.
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    return environment.get_template("bootstrap.yaml.j2")


def secret_table(tls: TlsFiles) -> Document:
    """The file that names the certificate and its key."""
    kind = "envoy.extensions.transport_sockets.tls.v3.Secret"
    files = {
        "certificate_chain": {"filename": str(tls.cert)},
        "private_key": {"filename": str(tls.key)},
    }
    secret = {
        "@type": f"type.googleapis.com/{kind}",
        "name": _SECRET,
        "tls_certificate": files,
    }
    return {"resources": [secret]}


def endpoint_table(slot: Slot, protocol: str, endpoints: tuple[Endpoint, ...]) -> Document:
    """One cluster's endpoint file: all replicas; an empty one while the slot has no process."""
    replicas = [_lb_endpoint(endpoint, protocol) for endpoint in endpoints]
    group = {"locality": {"zone": slot}, "lb_endpoints": replicas}
    return {
        "resources": [
            {
                "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
                "cluster_name": own_cluster(slot, protocol),
                "endpoints": [group] if replicas else [],
            }
        ]
    }


def _lb_endpoint(endpoint: Endpoint, protocol: str) -> Document:
    port = endpoint.grpc if protocol == "http2" else endpoint.http
    return {
        "endpoint": {
            "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
            # Health checks go to the HTTP port, where the server answers for both.
            "health_check_config": {"port_value": endpoint.http},
        }
    }
