"""The requests of a rollout to an API server, with errors translated to those of a data plane."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import httpx2
from lightkube import Client
from lightkube.config import client_adapter
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.generic_resource import create_namespaced_resource
from lightkube.types import PatchType

from mlctl.core.tokens import authorization
from mlctl.rollout.domain.interfaces import DataPlaneRejected, DataPlaneUnavailable
from mlctl.rollout.domain.kubernetes_target import Reach
from mlctl.rollout.drivers.kubernetes.route import Json

_API_SECONDS = 3.0
_POD_SECONDS = 2.0
_AT_ONCE = 16
_LONGEST_ANSWER = 4 << 20  # bytes

_HttpRoute = create_namespaced_resource(
    "gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes"
)
_EndpointSlice = create_namespaced_resource(
    "discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"
)


class ConflictError(Exception):
    """Another writer changed the object after it was read."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One endpoint of a Service: where its HTTP port is, and whether it gets traffic."""

    uid: str
    name: str
    address: str
    port: int
    ready: bool


class Cluster:
    """One namespace of a cluster.

    Raises DataPlaneUnavailable if the API server does not answer or denies access.
    `progress` is called after every request, answered or not.
    """

    def __init__(self, reach: Reach, progress: Callable[[], object] = lambda: None) -> None:
        self._reach = reach
        self._progress = progress
        try:
            config = _config(reach)
            self._client = Client(config, timeout=httpx2.Timeout(_API_SECONDS))
            connection = client_adapter.ConnectionParams(timeout=httpx2.Timeout(_POD_SECONDS))
            through_api = reach.pods == "api"
            self._pods = (
                client_adapter.Client(config, connection)
                if through_api
                else httpx2.Client(timeout=_POD_SECONDS, trust_env=False)
            )
        except (ConfigError, OSError, KeyError, ValueError) as error:
            raise DataPlaneUnavailable(f"no usable kubeconfig: {error}") from error
        self._threads = ThreadPoolExecutor(_AT_ONCE, "pods")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._pods.close()
        self._client.close()

    def route(self, name: str) -> Json:
        """The HTTPRoute; DataPlaneRejected if there is none."""
        with self._requesting(f"HTTPRoute {self._where(name)}"):
            found = self._client.get(_HttpRoute, name, namespace=self._reach.namespace)
        return _json(found)

    def patch_route(self, name: str, patch: Json) -> Json:
        """Merge `patch` into the HTTPRoute; ConflictError, DataPlaneRejected."""
        with self._requesting(f"HTTPRoute {self._where(name)}"):
            found = self._client.patch(
                _HttpRoute,
                name,
                patch,
                namespace=self._reach.namespace,
                patch_type=PatchType.MERGE,
            )
        return _json(found)

    def pods(self, service: str) -> tuple[Pod, ...]:
        """The endpoints of a Service, ready or not."""
        label: dict[str, Any] = {"kubernetes.io/service-name": service}
        with self._requesting(f"the EndpointSlices of Service {self._where(service)}"):
            slices = list(
                self._client.list(_EndpointSlice, namespace=self._reach.namespace, labels=label)
            )
        found = (pod for each in slices for pod in _pods_of(_json(each)))
        # An endpoint may be in two slices for a moment while it moves.
        return tuple({pod.uid: pod for pod in found}.values())

    def query(self, pods: Sequence[Pod], path: str) -> dict[str, httpx2.Response | None]:
        """Each pod's answer to GET `path` by its uid; None from those that did not answer."""
        answers = self._threads.map(lambda pod: self._get(pod, path), pods)
        found = {}
        for pod, answer in zip(pods, answers, strict=True):
            found[pod.uid] = answer
            self._progress()
        return found

    def _get(self, pod: Pod, path: str) -> httpx2.Response | None:
        try:
            if self._reach.pods == "direct":
                host = f"[{pod.address}]" if ":" in pod.address else pod.address
                url, headers = f"http://{host}:{pod.port}{path}", authorization()
            else:
                where = f"/api/v1/namespaces/{self._reach.namespace}/pods"
                url, headers = f"{where}/{pod.name}:{pod.port}/proxy{path}", {}
            answer = self._pods.get(url, headers=headers)
        except httpx2.HTTPError:
            return None
        return answer if len(answer.content) <= _LONGEST_ANSWER else None

    @contextmanager
    def _requesting(self, target: str) -> Iterator[None]:
        try:
            with _translate_errors(target):
                yield
        finally:
            self._progress()

    def _where(self, name: str) -> str:
        return f"{self._reach.namespace}/{name}"


def _config(reach: Reach) -> Any:
    """The configuration for one context; ConfigError."""
    named = reach.kubeconfig
    config = KubeConfig.from_file(named) if named else KubeConfig.from_env()
    return config.get(reach.context)


def _json(found: Any) -> Json:
    return dict(found)


def _pods_of(document: Json) -> Iterator[Pod]:
    ports = document.get("ports") or []
    named = [port for port in ports if port.get("name") == "http"] or ports
    number = next((port.get("port") for port in named), None)
    if number is None:
        return
    for endpoint in document.get("endpoints") or []:
        if not endpoint.get("addresses"):
            continue
        reference = endpoint.get("targetRef") or {}
        address = str(endpoint["addresses"][0])
        # No word on readiness counts as ready, says the API.
        ready = (endpoint.get("conditions") or {}).get("ready") is not False
        uid = str(reference.get("uid") or address)
        yield Pod(uid, str(reference.get("name") or address), address, int(number), ready)


@contextmanager
def _translate_errors(target: str) -> Iterator[None]:
    """Translate the API server's rejections and failures to the errors of a data plane."""
    try:
        yield
    except ApiError as error:
        code = error.response.status_code
        if code == 409:
            raise ConflictError(target) from error
        if code == 404:
            raise DataPlaneRejected(f"{target} does not exist") from error
        if code in (400, 422):
            raise DataPlaneRejected(f"the API server rejects {target}: {error}") from error
        raise DataPlaneUnavailable(
            f"the API server answers {code} for {target}: {error}"
        ) from error
    except (httpx2.HTTPError, ValueError) as error:
        raise DataPlaneUnavailable(
            f"the API server does not answer for {target}: {error}"
        ) from error
