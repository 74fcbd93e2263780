from __future__ import annotations

import json
import re
from typing import Any

import pytest

from mlctl.rollout.domain.interfaces import TrafficSplit
from mlctl.rollout.domain.spec import DeploymentSettings, Slot
from mlctl.rollout.drivers.envoy.routes import parse_traffic, route_table

BLUE, GREEN = Slot
TIMEOUTS = DeploymentSettings(request_seconds=600.0, stream_idle_seconds=300.0)


def all_routes(traffic: TrafficSplit) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = route_table(traffic, TIMEOUTS)["resources"][0]["virtual_hosts"][
        0
    ]["routes"]
    return found


def routes(traffic: TrafficSplit) -> list[dict[str, Any]]:
    """Those of whole answers."""
    return [route for route in all_routes(traffic) if not streams(route)]


def streams(route: dict[str, Any]) -> bool:
    return bool(route["route"]["timeout"] == "0s")


def dumped(found: list[dict[str, Any]]) -> dict[str, Any]:
    return {"configs": [{"route_config": {"virtual_hosts": [{"routes": found}]}}]}


def test_routes__each_protocol__has_the_same_weights() -> None:
    found = routes(TrafficSplit({BLUE: 95, GREEN: 5}))
    assert "grpc" in found[0]["match"]
    for route, protocol in zip(found, ("grpc", "infer", "http"), strict=True):
        assert route["route"]["weighted_clusters"] == {
            "clusters": [
                {"name": f"blue-first-{protocol}", "weight": 95},
                {"name": f"green-first-{protocol}", "weight": 5},
            ]
        }


def test_timeouts__request_longer_than_the_idle_time__is_not_ended_by_it() -> None:
    for route in routes(TrafficSplit({BLUE: 100}, testers=GREEN, sticky=True)):
        assert (route["route"]["timeout"], route["route"]["idle_timeout"]) == ("600s", "600s")
    for route in all_routes(TrafficSplit({BLUE: 100}, testers=GREEN, sticky=True)):
        if streams(route):
            assert route["route"]["idle_timeout"] == "300s"


def test_routes__testers__come_first_with_own_clusters() -> None:
    found = routes(TrafficSplit({BLUE: 100}, testers=GREEN))
    assert [route["route"].get("cluster") for route in found] == [
        *["green-tester-grpc"] * 2,
        *["green-tester-infer"] * 2,
        *["green-tester-http"] * 2,
        *[None] * 3,
    ]


@pytest.mark.parametrize("sticky", [False, True])
def test_routes__infer_requests__precede_those_of_http_alike(sticky: bool) -> None:
    found = routes(TrafficSplit({BLUE: 95, GREEN: 5}, testers=GREEN, sticky=sticky))
    post = {"name": ":method", "string_match": {"exact": "POST"}}
    infer = [route for route in found if route["match"].get("safe_regex")]
    http = [route for route in found if "prefix" in route["match"] and "grpc" not in route["match"]]
    for route, other in zip(infer, http, strict=True):
        assert found.index(route) < found.index(other)
        path = route["match"].pop("safe_regex")["regex"]
        assert other["match"].pop("prefix") == "/"
        assert route["match"].pop("headers")[0] == post
        assert [post, *other["match"].pop("headers", [])][0] == post
        assert json.loads(json.dumps(route).replace("-infer", "-http")) == other
        for asked, matches in (
            ("/v2/models/m/infer", True), ("/v2/models/a%20b/versions/1/infer", True),
            ("/v2/models/m/infer_stream", False), ("/v2/models/m/versions/1/generate", False),
            ("/v2/models/infer", False), ("/v2/repository/models/m/infer", False),
        ):  # fmt: skip
            assert (re.fullmatch(path, asked) is not None) == matches, asked


@pytest.mark.parametrize("sticky", [False, True])
def test_routes__streamed_answers__differ_in_timeouts_only(sticky: bool) -> None:
    found = all_routes(TrafficSplit({BLUE: 95, GREEN: 5}, testers=GREEN, sticky=sticky))
    found = [route for route in found if "-infer" not in json.dumps(route["route"])]
    for pieces, whole in zip(found[::2], found[1::2], strict=True):
        assert whole["route"]["timeout"] == "600s"
        again = {**whole["route"], "timeout": "0s", "idle_timeout": "300s"}
        assert pieces["route"].keys() == again.keys()
        assert pieces["route"]["timeout"] == "0s"
        assert pieces["route"]["idle_timeout"] == "300s"
        assert shares(pieces) == [
            (name.replace("-first-", "-stream-"), weight) for name, weight in shares(whole)
        ]
        path = pieces["match"].pop("safe_regex")["regex"]
        assert whole["match"].pop("prefix") == "/"
        assert {**pieces, "route": 0} == {**whole, "route": 0}
        if "grpc" in whole["match"]:
            told = ("/inference.GRPCInferenceService/ModelStreamInfer", True)
            others = [("/inference.GRPCInferenceService/ModelInfer", False)]
        else:
            told = ("/v2/models/m/infer_stream", True)
            others = [("/v2/models/m/versions/1/generate_stream", True), ("/v2/x/infer", False)]
            others += [("/v1/chat/completions", True), ("/v1/completions", True)]
            others += [("/v2/models/m/generate", True), ("/v1/models", False)]
        for asked, streams in (told, *others):
            assert (re.fullmatch(path, asked) is not None) == streams, asked


def shares(route: dict[str, Any]) -> list[tuple[str, int]]:
    weighted = route["route"].get("weighted_clusters", {"clusters": []})
    return [(cluster["name"], cluster["weight"]) for cluster in weighted["clusters"]]


def test_routes__streamed_answers__are_not_mirrored() -> None:
    for route in all_routes(TrafficSplit({BLUE: 100}, mirror=20, mirror_to=GREEN)):
        assert ("request_mirror_policies" in route["route"]) != streams(route)


def test_routes__mirror__goes_to_shadow_clusters() -> None:
    found = routes(TrafficSplit({BLUE: 100}, mirror=20, mirror_to=GREEN))
    for route, protocol in zip(found, ("grpc", "infer", "http"), strict=True):
        (policy,) = route["route"]["request_mirror_policies"]
        assert policy["cluster"] == f"green-shadow-{protocol}"
        assert policy["runtime_fraction"]["default_value"]["numerator"] == 20


@pytest.mark.parametrize(
    "traffic",
    [
        TrafficSplit({BLUE: 95, GREEN: 5}),
        TrafficSplit({BLUE: 100}, mirror=20, mirror_to=GREEN, testers=GREEN),
        TrafficSplit({GREEN: 100}, mirror=1, mirror_to=BLUE, sticky=True),
    ],
    ids=["weights", "mirror", "sticky"],
)
def test_parse_traffic__written_routes__is_read_back(traffic: TrafficSplit) -> None:
    assert parse_traffic(dumped(all_routes(traffic))) == traffic


def test_parse_traffic__weight_of_zero_is_absent__is_read_as_zero() -> None:
    found = routes(TrafficSplit({BLUE: 100}))
    for route in found:
        del route["route"]["weighted_clusters"]["clusters"][1]["weight"]
    assert parse_traffic(dumped(found)) == TrafficSplit({BLUE: 100})


def test_parse_traffic__no_routes__is_none() -> None:
    assert parse_traffic({}) is None
    assert parse_traffic({"configs": []}) is None
    assert parse_traffic({"configs": [{"route_config": {"name": "deployment"}}]}) is None


def test_traffic_split__invalid_weights_or_mirror__are_rejected() -> None:
    with pytest.raises(ValueError, match="sum to 100"):
        TrafficSplit({BLUE: 95, GREEN: 6})
    with pytest.raises(ValueError, match="less than or equal to 100"):
        TrafficSplit({BLUE: 110, GREEN: -10})
    with pytest.raises(ValueError, match="cannot be copied"):
        TrafficSplit({BLUE: 100}, mirror=5)
