from __future__ import annotations

import re
from typing import Any

from mlctl.rollout.domain.spec import Slot
from mlctl.rollout.domain.traffic.counts import LATENCY_EDGES_MS
from mlctl.rollout.drivers.envoy.stats import STATS_FILTER, parse_stats

GRPC = "grpc.inference.GRPCInferenceService.ModelInfer"


def histogram(name: str, within_first: int, within_all: int) -> dict[str, Any]:
    counts = [within_first, *[within_all] * (len(LATENCY_EDGES_MS) - 1)]
    buckets = [
        {"upper_bound": edge, "interval": 0, "cumulative": n}
        for edge, n in zip(LATENCY_EDGES_MS, counts, strict=True)
    ]
    return {"name": name, "buckets": buckets}


def stats(*values: tuple[str, int], histograms: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    entries: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in values]
    return {"stats": [*entries, {"histograms": list(histograms)}]}


def test_parse_stats__http_and_grpc__are_summed() -> None:
    reading = parse_stats(
        stats(
            ("cluster.green-first-http.upstream_rq_completed", 10),
            ("cluster.green-first-grpc.upstream_rq_completed", 5),
            histograms=(
                histogram("cluster.green-first-http.zone.proxy.green.upstream_rq_time", 4, 10),
                histogram("cluster.green-first-grpc.zone.proxy.green.upstream_rq_time", 1, 5),
            ),
        )
    )
    green = reading.totals[Slot.GREEN]
    assert (green.requests, green.timed, green.within[0]) == (15, 15, 5)
    assert reading.totals[Slot.BLUE].requests == 0


def test_parse_stats__streamed_answers__count_errors_but_no_times() -> None:
    reading = parse_stats(
        stats(
            ("cluster.green-stream-http.upstream_rq_completed", 3),
            ("cluster.green-stream-grpc.upstream_rq_completed", 2),
            (f"cluster.green-stream-grpc.{GRPC.replace('ModelInfer', 'ModelStreamInfer')}.13", 1),
            histograms=(
                histogram("cluster.green-stream-http.zone.proxy.green.upstream_rq_time", 1, 3),
            ),
        )
    )
    green = reading.totals[Slot.GREEN]
    assert (green.requests, green.errors, green.timed, green.within[0]) == (5, 1, 0, 0)


def test_parse_stats__unused_protocol__adds_nothing() -> None:
    histograms = (histogram("cluster.green-first-http.zone.proxy.green.upstream_rq_time", 4, 10),)
    assert parse_stats(stats(histograms=histograms)).totals[Slot.GREEN].timed == 10


def test_parse_stats__each_error_kind__is_counted() -> None:
    reading = parse_stats(
        stats(
            ("cluster.green-first-http.upstream_rq_5xx", 1),
            ("cluster.green-first-http.upstream_rq_429", 32),  # a language model's full queue
            ("cluster.green-first-http.zone.proxy.green.upstream_rq_429", 32),
            ("cluster.green-first-http.zone.proxy.green.upstream_rq_4xx", 33),
            ("cluster.green-first-http.zone.proxy.blue.upstream_rq_completed", 2),
            ("cluster.green-first-grpc.upstream_rq_5xx", 16),  # reset calls have a status too
            (f"cluster.green-first-grpc.{GRPC}.13", 8),
            (f"cluster.green-first-grpc.{GRPC}.14", 16),
            (f"cluster.green-first-grpc.{GRPC}.0", 100),
            (f"cluster.green-first-grpc.{GRPC}.3", 100),
        )
    )
    green = reading.totals[Slot.GREEN]
    assert (green.errors, green.client_errors) == (59, 101)


def test_parse_stats__other_slot_answered__is_an_error_and_nothing_else() -> None:
    rescued = "cluster.green-first-http.zone.proxy.blue.upstream_rq"
    reading = parse_stats(
        stats(
            ("cluster.green-first-http.upstream_rq_completed", 10),
            ("cluster.green-first-http.upstream_rq_5xx", 3),
            (f"{rescued}_completed", 6),
            (f"{rescued}_5xx", 1),
            (f"{rescued}_4xx", 2),
            histograms=(histogram(f"{rescued}_time", 6, 6),),
        )
    )
    green, blue = reading.totals[Slot.GREEN], reading.totals[Slot.BLUE]
    assert (green.requests, green.errors, green.client_errors, green.timed) == (10, 8, 0, 0)
    assert (blue.requests, blue.errors) == (0, 0)


def test_parse_stats__client_errors__are_counted_apart() -> None:
    reading = parse_stats(
        stats(
            ("cluster.green-first-http.zone.proxy.green.upstream_rq_4xx", 1),
            (f"cluster.green-first-grpc.{GRPC}.3", 2),
            (f"cluster.green-first-grpc.{GRPC}.5", 4),
            (f"cluster.green-first-grpc.{GRPC}.12", 8),
            (f"cluster.green-first-grpc.{GRPC}.13", 16),
        )
    )
    assert reading.totals[Slot.GREEN].client_errors == 15


def test_parse_stats__requests_without_an_answer__are_abandoned() -> None:
    values = [
        ("cluster.green-http1.upstream_cx_destroy_local_with_active_rq", 5),
        ("cluster.green-http2.upstream_rq_tx_reset", 2),
        ("cluster.green-http1.upstream_rq_cancelled", 1),
        ("cluster.green-first-http.upstream_rq_timeout", 2),
    ]
    assert parse_stats(stats(*values)).totals[Slot.GREEN].abandoned == 6
    assert parse_stats(stats(values[-1])).totals[Slot.GREEN].abandoned == 0


def test_parse_stats__infer_requests_and_grpc_share_connections__count_once_each() -> None:
    """Their failures add up, although those of gRPC may be counted twice by Envoy."""
    reading = parse_stats(
        stats(
            ("cluster.green-first-infer.upstream_rq_completed", 9),
            ("cluster.green-first-infer.upstream_rq_5xx", 3),
            ("cluster.green-first-grpc.upstream_rq_completed", 5),
            ("cluster.green-first-grpc.upstream_rq_5xx", 1),
            (f"cluster.green-first-grpc.{GRPC}.13", 2),
            ("cluster.green-http2.upstream_rq_tx_reset", 4),
            ("cluster.green-first-infer.upstream_rq_timeout", 1),
            ("cluster.green-first-grpc.upstream_rq_timeout", 1),
        )
    )
    green = reading.totals[Slot.GREEN]
    assert (green.requests, green.errors, green.abandoned) == (14, 5, 2)


def test_parse_stats__one_protocol_unhealthy__slot_is_unhealthy() -> None:
    values = [(f"cluster.blue-{p}.membership_healthy", 1) for p in ("http1", "http2")]
    values += [("cluster.green-http1.membership_healthy", 1)]
    values += [("cluster.green-http2.membership_healthy", 0)]
    reading = parse_stats(stats(*values))
    assert reading.healthy == {Slot.BLUE: True, Slot.GREEN: False}


def test_parse_stats__requests_in_flight__are_per_slot() -> None:
    values = [(f"cluster.blue-{p}.upstream_rq_active", 2) for p in ("http1", "http2")]
    assert parse_stats(stats(*values)).active == {Slot.BLUE: 4, Slot.GREEN: 0}


def test_parse_stats__copies__are_counted_apart() -> None:
    reading = parse_stats(
        stats(
            ("cluster.green-shadow-http.upstream_rq_completed", 7),
            ("cluster.green-shadow-http.upstream_rq_5xx", 2),
            ("cluster.green-shadow-grpc.upstream_rq_tx_reset", 1),
            ("cluster.green-tester-http.upstream_rq_completed", 5),
            histograms=(
                histogram("cluster.green-shadow-http.zone.proxy.green.upstream_rq_time", 3, 7),
            ),
        )
    )
    shadow = reading.shadow[Slot.GREEN]
    assert (shadow.requests, shadow.errors, shadow.timed, shadow.abandoned) == (7, 2, 7, 1)
    assert reading.totals[Slot.GREEN] == reading.totals[Slot.BLUE]
    assert reading.totals[Slot.GREEN].requests == 0


def test_parse_stats__rejected_by_a_clients_limit__is_no_request_and_no_error() -> None:
    reading = parse_stats(
        stats(
            ("cluster.green-first-http.upstream_rq_completed", 10),
            ("cluster.green-first-http.upstream_rq_429", 5),  # one is a full queue
            ("cluster.green-first-http.zone.proxy.green.upstream_rq_429", 5),
            ("cluster.green-first-http.zone.proxy.green.upstream_rq_4xx", 5),
            ("cluster.green-first-http.canary.upstream_rq_completed", 4),
            ("cluster.green-first-grpc.upstream_rq_completed", 10),
            (f"cluster.green-first-grpc.{GRPC}.8", 3),
            ("cluster.green-first-grpc.canary.upstream_rq_completed", 2),
        )
    )
    green = reading.totals[Slot.GREEN]
    assert (green.requests, green.errors, green.client_errors) == (14, 2, 0)
    assert re.match(STATS_FILTER, "cluster.green-first-grpc.canary.upstream_rq_completed")
