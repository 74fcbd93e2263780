"""A real server with everything on: what is seen of requests through every front door."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc
from pyarrow import parquet

from mlctl.bento.packaging import BuiltBento
from mlctl.bundle.sampling import Sampling, write_sampling
from mlctl.bundle.verify import VerifiedBundle
from mlctl.optimize.data import load_data
from tests.services.online.observability.calls import SPAN, TRACE
from tests.support.bundles import expected
from tests.support.collector import Collector, collecting
from tests.support.serving import Server, launch, running
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow
X = np.array([[1, 2, 3, 4], [0.5, -1, 0, 7]], dtype=np.float32)
TENSOR = {"name": "x", "datatype": "FP32", "shape": [2, 4], "data": X.tolist()}
DOORS = ("v2", "grpc", "predict")
triton: Any = tritonclient.grpc


@dataclass(frozen=True, slots=True)
class Watched:
    """A server, and where what is seen of it goes."""

    server: Server
    collector: Collector
    folder: Path

    def ask(self, door: str, request_id: str, flags: str = "01") -> None:
        """Ask through a front door, as a caller with a trace."""
        headers = {
            "x-request-id": request_id,
            "traceparent": f"00-{TRACE}-{SPAN}-{flags}",
            "tracestate": f"door={door}",
        }
        if door == "grpc":
            client = triton.InferenceServerClient(f"127.0.0.1:{self.server.grpc_port}")
            tensor = triton.InferInput("x", [2, 4], "FP32")
            tensor.set_data_from_numpy(X)
            client.infer("tiny", [tensor], headers=headers)
            client.close()
            return
        name = "v2/models/tiny/infer" if door == "v2" else door
        body = {"x": X.tolist()} if door == "predict" else {"inputs": [TENSOR]}
        answer = httpx.post(f"{self.server.url}/{name}", json=body, headers=headers)
        assert answer.status_code == 200, answer.text

    def logged(self) -> dict[str, dict[str, Any]]:
        lines = (self.folder / "access.log").read_text().splitlines()
        return {line["request_id"]: line for line in map(json.loads, lines)}

    def sampled(self) -> list[dict[str, Any]]:
        paths = sorted((self.folder / "samples").glob("*.parquet"))
        return [row for path in paths for row in parquet.read_table(path).to_pylist()]


@pytest.fixture(scope="module")
def watched(
    built: BuiltBento, store_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    with collecting() as collector:
        environment = {
            "MLCTL_ACCESS_LOG": str(folder / "access.log"),
            "MLCTL_OTLP_ENDPOINT": collector.url,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "MLCTL_SAMPLE_DIR": str(folder / "samples"),
            "MLCTL_SAMPLE_CONTROL": str(folder / "control.json"),
        }
        launched = launch(
            built.tag, folder / "log", cwd=folder, bento_home=store_home, environment=environment
        )
        with running(launched) as server:
            yield Watched(server, collector, folder)


def test_observability__each_endpoint__is_logged_and_sampled(
    watched: Watched, shared_bundle: VerifiedBundle
) -> None:
    watched.ask("v2", "before")
    assert not watched.sampled()
    write_sampling(watched.folder / "control.json", Sampling(share=1, flush_seconds=0.1))
    log = watched.server.log
    wait_until(lambda: '"share": 1' in log.read_text(), what="the server was told to record")
    for door in DOORS:
        watched.ask(door, f"{door}-1")
        watched.ask(door, f"{door}-2", flags="00")
    wait_until(lambda: len(watched.logged()) == 7, what="every request is logged")
    wait_until(lambda: len(watched.sampled()) == 12, what="every row is recorded")
    doors = {name: line["protocol"] for name, line in watched.logged().items()}
    assert doors == {
        "before": "http",
        **{f"{door}-{n}": door if door in ("grpc", "predict") else "http"
           for door in DOORS for n in (1, 2)},
    }  # fmt: skip
    for line in watched.logged().values():
        assert (line["code"], line["rows"], line["trace_id"]) == ("ok", 2, TRACE)
        assert line["bytes_in"] > 0
        assert line["infer_ms"] > 0
    rows = {(row["request_id"], row["row"]): row for row in watched.sampled()}
    assert set(rows) == {(f"{door}-{n}", row) for door in DOORS for n in (1, 2) for row in (0, 1)}
    for (_, row), found in rows.items():
        assert found["digest"] == shared_bundle.digest
        np.testing.assert_array_equal(found["in.x"], X[row])
        np.testing.assert_allclose(found["out.y"], expected(X)[row])


def test_tracing__each_endpoint__exports_spans_of_sampled_callers(watched: Watched) -> None:
    def requests() -> set[str]:
        return {
            attribute.value.string_value
            for span in list(watched.collector.spans)
            for attribute in span.attributes
            if attribute.key == "mlctl.request_id"
        }

    for door in DOORS:
        watched.ask(door, f"{door}-traced")
        watched.ask(door, f"{door}-untraced", flags="00")
    wanted = {f"{door}-traced" for door in DOORS}
    wait_until(lambda: wanted <= requests(), what="every traced request has come")
    assert not any(name.endswith("untraced") for name in requests())
    servers = [span for span in watched.collector.spans if span.parent_span_id.hex() == SPAN]
    assert {span.trace_id.hex() for span in watched.collector.spans} == {TRACE}
    assert {span.name for span in servers} == {
        "POST /v2/models/tiny/infer",
        "inference.GRPCInferenceService/ModelInfer",
        "POST /predict",
    }
    assert {span.trace_state for span in servers} == {f"door={door}" for door in DOORS}
    assert watched.collector.services == {"tiny"}


def test_access_log__failures__have_their_code(watched: Watched) -> None:
    url = f"{watched.server.url}/v2/models/tiny/infer"
    for name, content, headers in (
        ("bad-body", b"{", {}),
        ("bad-type", b"{}", {"content-type": "text/plain"}),
    ):
        httpx.post(url, content=content, headers={"x-request-id": name, **headers})
    predict, headers = f"{watched.server.url}/predict", {"x-request-id": "bad-arguments"}
    assert httpx.post(predict, json={"x": "?"}, headers=headers).status_code == 400
    assert httpx.get(predict, headers={"x-request-id": "bad-method"}).status_code == 405
    names = {"bad-body", "bad-type", "bad-arguments", "bad-method"}
    wait_until(lambda: names <= set(watched.logged()))
    logged = watched.logged()
    told = [logged[name]["code"] for name in ("bad-arguments", "bad-method")]
    assert told == ["invalid_input", "method_not_allowed"]
    assert (logged["bad-body"]["status"], logged["bad-body"]["code"]) == (400, "invalid_input")
    assert logged["bad-type"]["status"] == 415
    assert logged["bad-body"]["bytes_in"] == 1
    metrics = httpx.get(f"{watched.server.url}/metrics").text
    assert 'mlctl_access_log_dropped_total{model="tiny"} 0.0' in metrics
    assert "mlctl_sampled_rows_total" in metrics


def test_samples__loaded_as_data__are_the_inputs(
    watched: Watched, shared_bundle: VerifiedBundle
) -> None:
    write_sampling(watched.folder / "control.json", Sampling(share=1, flush_seconds=0.1))
    for number in range(10):
        watched.ask("v2", f"row-{number}")
    wait_until(lambda: len(watched.sampled()) >= 20)
    data = load_data(watched.folder / "samples", shared_bundle.manifest.signature)
    assert data.rows >= 20
    assert {tuple(row) for row in data.held_out.inputs["x"].tolist()} <= set(map(tuple, X.tolist()))
