"""An API server that knows four kinds of objects: real HTTP, real conflicts, real merge patches.

It also stands for the pods, which answer behind `/proxy/` and whose counters the test writes.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml  # type: ignore[import-untyped]
from prometheus_client import CollectorRegistry, generate_latest

from mlctl.services.online.metrics.counts import Metrics

Json = dict[str, Any]
_PREFIXES = {
    "httproutes": "/apis/gateway.networking.k8s.io/v1/",
    "endpointslices": "/apis/discovery.k8s.io/v1/",
}


class FakePod:
    """A pod that counts as a real server does, and tells which digest it serves."""

    def __init__(self, name: str, digest: str) -> None:
        self.name = name
        self.digest = digest
        self.ready = True
        self.answers = True
        self.restart()

    def restart(self) -> None:
        """The container starts again: every counter is zero."""
        self._registry = CollectorRegistry()
        self._metrics = Metrics("tiny", self._registry)

    def serve(self, n: int, *, outcome: str = "ok", seconds: float = 0.004) -> None:
        """Count `n` requests with one outcome; answered ones took `seconds`."""
        for _ in range(n):
            if outcome == "ok":
                self._metrics.answered("http", 0.0, 0.0, seconds, 0.0)
            else:
                self._metrics.request("http", outcome)

    def get(self, path: str) -> tuple[int, bytes]:
        if not self.answers:
            return 502, b"{}"
        if path == "/metrics":
            return 200, generate_latest(self._registry)
        if path == "/v2/models/tiny":
            return 200, json.dumps({"name": "tiny", "versions": [self.digest]}).encode()
        return 404, b"{}"


@dataclass
class FakeKube:
    """What the server holds. `down` makes every request fail; `before_write` runs just before one
    is decided; `accepts` is how the Gateway's controller rules on a route, None for not at all.
    """

    objects: dict[tuple[str, str], Json] = field(default_factory=dict)
    pods: dict[str, list[FakePod]] = field(default_factory=dict)
    down: int = 0
    before_write: Callable[[], None] | None = None
    accepts: bool | None = True
    writes: list[Json] = field(default_factory=list)
    url: str = ""
    lock: threading.RLock = field(default_factory=threading.RLock)
    _version: int = 100

    def put(self, kind: str, document: Json) -> Json:
        """Create or replace an object, as anybody else would."""
        with self.lock:
            before = self.objects.get((kind, document["metadata"]["name"]))
            made = copy.deepcopy(document)
            self._version += 1
            meta = made["metadata"]
            meta["resourceVersion"] = str(self._version)
            generation = before["metadata"]["generation"] if before else 0
            changed = before is None or before["spec"] != made["spec"]
            meta["generation"] = generation + changed
            if self.accepts is not None:
                made["status"] = _ruling(meta["generation"], accepted=self.accepts)
            self.objects[kind, meta["name"]] = made
            return made

    def route(self) -> Json:
        with self.lock:
            return copy.deepcopy(self.objects["httproutes", "web"])

    def weights(self) -> dict[str, int]:
        """The weight of each backend of the first rule."""
        refs = self.route()["spec"]["rules"][0]["backendRefs"]
        return {ref["name"]: ref.get("weight", 1) for ref in refs}

    def patch(self, kind: str, name: str, patch: Json) -> tuple[int, Json]:
        """A merge patch (RFC 7396), refused when its resourceVersion is not the newest."""
        if self.before_write is not None:
            self.before_write()
        with self.lock:
            before = self.objects.get((kind, name))
            if before is None:
                return 404, _status(404, "not found")
            version = patch.get("metadata", {}).get("resourceVersion")
            if version is not None and version != before["metadata"]["resourceVersion"]:
                return 409, _status(409, "the object has been modified")
            made = self.put(kind, _merged(before, patch))
            self.writes.append(patch)
            return 200, made

    def slices(self, service: str) -> Json:
        endpoints = [
            {
                "addresses": [f"10.0.0.{number}"],
                "conditions": {"ready": pod.ready},
                "targetRef": {"kind": "Pod", "name": pod.name, "uid": f"uid-{pod.name}"},
            }
            for number, pod in enumerate(self.pods.get(service, []), start=1)
        ]
        ports = [{"name": "grpc", "port": 3001}, {"name": "http", "port": 3000}]
        item = {"metadata": {"name": f"{service}-x"}, "ports": ports, "endpoints": endpoints}
        return {"kind": "EndpointSliceList", "metadata": {}, "items": [item]}

    def get(self, path: str, query: dict[str, list[str]]) -> tuple[int, bytes]:
        """Answer a GET."""
        with self.lock:
            head, proxy, rest = path.partition("/proxy/")
            if proxy:
                name = head.rpartition("/")[2].partition(":")[0]
                every = (pod for group in self.pods.values() for pod in group)
                pod = next((pod for pod in every if pod.name == name), None)
                return pod.get(f"/{rest}") if pod else (404, b"{}")
            if path.startswith(_PREFIXES["endpointslices"]):
                label = query.get("labelSelector", [""])[0]
                return 200, json.dumps(self.slices(label.partition("=")[2])).encode()
            found = self.objects.get(("httproutes", path.rpartition("/")[2]))
            if found is None or not path.startswith(_PREFIXES["httproutes"]):
                return 404, json.dumps(_status(404, "not found")).encode()
            return 200, json.dumps(found).encode()


def route(*others: Json, weights: tuple[int, int] = (100, 0)) -> Json:
    """An HTTPRoute with one rule of ours, which also has `others` as backends, and one that
    is not ours.
    """
    ours = [
        {"name": name, "port": 80, "weight": weight}
        for name, weight in zip(("shop-blue", "shop-green"), weights, strict=True)
    ]
    testers = {
        "matches": [{"headers": [{"name": "x-tester", "value": "yes"}]}],
        "backendRefs": [{"name": "shop-green", "port": 80, "weight": 7}],
    }
    rules = [{"backendRefs": [*ours, *others]}, testers]
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": "web", "namespace": "shop", "annotations": {"team": "search"}},
        "spec": {"parentRefs": [{"name": "public"}], "rules": rules},
    }


@contextmanager
def kube(directory: Path) -> Iterator[tuple[FakeKube, Path]]:
    """A listening API server, and the path of a kubeconfig for it."""
    state = FakeKube()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(state))
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield state, _kubeconfig(directory, state.url)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(state: FakeKube) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            self._answer(lambda: state.get(unquote(parts.path), parse_qs(parts.query)))

        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            assert self.headers["content-type"] == "application/merge-patch+json"
            kind, name = self.path.partition("?")[0].rsplit("/", 2)[1:]

            def patched() -> tuple[int, bytes]:
                code, document = state.patch(kind, name, body)
                return code, json.dumps(document).encode()

            self._answer(patched)

        def _answer(self, answer: Callable[[], tuple[int, bytes]]) -> None:
            code, body = answer() if not state.down else (state.down, _down(state.down))
            self.send_response(code)
            self.send_header("content-length", str(len(body)))
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    return Handler


def _down(code: int) -> bytes:
    if code == 502:  # a balancer in front of the API server speaks no JSON
        return b"<html>bad gateway</html>"
    return json.dumps(_status(code, "etcd is gone")).encode()


def _status(code: int, message: str) -> Json:
    return {"kind": "Status", "status": "Failure", "code": code, "message": message}


def _ruling(generation: int, *, accepted: bool) -> Json:
    condition = {
        "type": "Accepted",
        "status": str(accepted),
        "reason": "Accepted" if accepted else "UnsupportedValue",
        "message": "",
        "observedGeneration": generation,
    }
    return {"parents": [{"parentRef": {"name": "public"}, "conditions": [condition]}]}


def _merged(target: Any, patch: Any) -> Any:
    """RFC 7396: objects are merged, null removes, all else replaces."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged


def _kubeconfig(directory: Path, url: str) -> Path:
    path = directory / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path
