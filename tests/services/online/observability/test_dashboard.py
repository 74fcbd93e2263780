"""The dashboard and the alert rules name metrics that the server really has."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import promql_parser
import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client import CollectorRegistry

from mlctl.bundle.verify import VerifiedBundle
from mlctl.services.online.metrics.generation import GenerationMetrics
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import ServerSettings
from mlctl.services.protocol.priority import Priority
from mlctl.services.protocol.wire import InferRequest
from mlctl.services.stream.events import CommittedBatch, StreamEvent, StreamPhase, StreamTotals
from mlctl.services.stream.metrics import StreamMetrics

ROOT = Path(__file__).parents[4]
# The server's and the stream's. The tests of the rollout's daemon check `mlctl_rollout_*`.
METRIC = re.compile(r"\bmlctl_(?!rollout_)\w+")


def dashboard() -> Any:
    return json.loads((ROOT / "deploy/grafana/mlctl.json").read_text())


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def queries() -> Iterator[str]:
    """PromQL of the panels and the alert rules."""
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))
    yield from (rule["expr"] for rule in rules())


def expressions() -> Iterator[str]:
    yield from queries()
    yield from (str(variable["query"]) for variable in dashboard()["templating"]["list"])


@pytest.fixture
def exported(bundle: VerifiedBundle, tmp_path: Path) -> dict[str, set[str]]:
    """The labels of every sample of a started server that has everything on, and of a stream."""
    registry = CollectorRegistry()
    settings = ServerSettings(
        access_log=str(tmp_path / "log"),
        sample_dir=tmp_path / "samples",
        sample_share=1,
        otlp_endpoint="http://127.0.0.1:9",
        precomputed="scores",
        precomputed_store=str(tmp_path / "stores"),
    )

    async def main() -> None:
        host = ServedModel(bundle, settings, registry=registry)
        await host.start()
        host.count("http", None)
        host.count("http", RuntimeError())
        host.count("grpc", TimeoutError())
        host.count("grpc", _refusal())
        host.answered("http", 0.1, 0.1, 0.1, 0.1, "")
        x = np.zeros((1, 4), np.float32)
        request = InferRequest("", {"x": x}, {"y": True}, keys=("nobody",))
        await host.ask(request, None, Priority.NORMAL)
        await host.stop()

    asyncio.run(main())
    batch = CommittedBatch(2, 2, 1, 1, stages={"score": 0.1}, reasons={"invalid_input": 1})
    stream = StreamMetrics("tiny", registry)
    stream.on_event(StreamEvent(StreamPhase.COMMITTED, StreamTotals(1, 1), 1.0, {"0": 1}, batch))
    return _labels(registry)


@pytest.fixture
def generation() -> dict[str, set[str]]:
    """The labels of every sample of a language model."""
    registry = CollectorRegistry()

    async def main() -> None:
        metrics = GenerationMetrics("tiny", registry, capacity=1)
        metrics.first_token(0.1, 1)
        metrics.publish()

    asyncio.run(main())
    return _labels(registry)


def _labels(registry: CollectorRegistry) -> dict[str, set[str]]:
    samples = [sample for metric in registry.collect() for sample in metric.samples]
    return {sample.name: set(sample.labels) for sample in samples}


def _refusal() -> Exception:
    from mlctl.core.errors import ErrorCode, MlctlError

    return MlctlError(ErrorCode.INVALID_INPUT, "wrong")


def test_dashboard__each_metric_and_label__exists(
    exported: dict[str, set[str]], generation: dict[str, set[str]]
) -> None:
    exported |= generation
    used = {name for text in expressions() for name in METRIC.findall(text)}
    assert len(used) > 15
    assert used <= set(exported)
    for text in expressions():
        for name, selector in re.findall(rf"({METRIC.pattern})\{{([^}}]*)\}}", text):
            labels = set(re.findall(r"(\w+)\s*[=!]", selector))
            assert labels <= exported[name], text
        grouped = {
            label.strip() for names in re.findall(r"by \(([^)]*)\)", text)
            for label in names.split(",")
        }  # fmt: skip
        known = set[str]().union(*(exported.get(name, set()) for name in METRIC.findall(text)))
        assert grouped <= known, text


def test_dashboard__each_exported_metric__is_shown(exported: dict[str, set[str]]) -> None:
    shown = {name for text in expressions() for name in METRIC.findall(text)}
    families = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in exported}
    ours = {name for name in families if name.startswith("mlctl_") and name + "_total" not in shown}
    assert ours <= {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}


def test_expressions__of_dashboard_and_alerts__are_promql() -> None:
    assert queries()
    for text in queries():
        promql_parser.parse(text.replace("$__rate_interval", "5m"))


def test_dashboard__panels__are_provisionable_and_do_not_overlap() -> None:
    found = dashboard()
    assert found["uid"] == "mlctl"
    assert "__inputs" not in found  # those are asked for by hand, at an import
    panels = found["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    areas: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & areas, panel["title"]
        assert max(x for x, _ in cells) < 24
        areas |= cells
        if panel["type"] != "row":
            assert panel["description"]
            assert panel["datasource"]["uid"] == "${datasource}"
            assert [target["refId"] for target in panel["targets"]] == list(
                "ABC"[: len(panel["targets"])]
            )
    known = {variable["name"] for variable in found["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(found)))
    assert used - {"__rate_interval"} == known


def test_alerts__each_rule__has_its_fields() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) > 5
    for rule in rules():
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+m", rule["for"])
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert set(rule["annotations"]) == {"summary", "description"}
