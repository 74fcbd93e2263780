from __future__ import annotations

import pytest

from rollout.judging.counts import LATENCY_EDGES_MS, Totals
from rollout.model import Colour
from rollout.planes.haproxy_config import SLOTS
from rollout.planes.haproxy_counts import (
    LostAnswersError,
    Tallies,
    parse_ports,
    parse_servers,
)

BLUE, GREEN = Colour


def told(*lines: str) -> Totals:
    tallies = Tallies()
    tallies.add([f"mlctl {line}" for line in lines])
    return tallies.totals()[GREEN]


def test_an_answer_is_counted_at_its_edge_without_the_time_of_its_upload() -> None:
    green = told("green-http green1 200 150 100 -- 0 - -", "green-grpc green2 200 +51 0 -- 0 0 -")
    assert (green.requests, green.timed, green.errors) == (2, 2, 0)
    assert green.slower_than(50.0, LATENCY_EDGES_MS) == 1
    assert green.slower_than(51.0, LATENCY_EDGES_MS) == 0


def test_an_answer_in_pieces_may_fail_but_is_not_timed() -> None:
    green = told("green-http green1 200 70000 0 -- 0 - 1", "green-grpc green1 200 9 0 -- 0 13 1")
    assert (green.requests, green.timed, green.errors) == (2, 0, 1)


def test_what_is_slower_than_every_edge_is_within_none() -> None:
    green = told("green-http green1 200 70000 0 -- 0 - -")
    assert green.slower_than(60_000.0, LATENCY_EDGES_MS) == 1


@pytest.mark.parametrize(
    "line",
    [
        "green-http green1 500 1 0 -- 0 - -",
        "green-http green1 502 1 0 SH 0 - -",
        "green-http <NOSRV> 503 1 0 SC 0 - -",
        "green-http green1 200 1 0 SD 0 - -",
        "green-http green1 -1 1 0 SH 0 - -",
        "green-http blue1 200 1 0 -- 0 - -",
        "green-http green2 200 1 0 -- +1 - -",
        "green-grpc green1 200 1 0 -- 0 13 -",
    ],
    ids=["5xx", "cut", "nobody", "half", "silent", "rescued", "again", "grpc"],
)
def test_what_counts_as_an_error(line: str) -> None:
    green = told(line)
    assert (green.requests, green.errors, green.client_errors) == (1, 1, 0)


@pytest.mark.parametrize(
    "line", ["green-http green1 422 1 0 -- 0 - -", "green-grpc green1 200 1 0 -- 0 3 -"]
)
def test_what_blames_the_caller_is_no_error_but_counted(line: str) -> None:
    green = told(line)
    assert (green.requests, green.errors, green.client_errors) == (1, 0, 1)


def test_a_client_that_left_before_any_answer_abandoned_it() -> None:
    green = told("green-http green1 -1 1 0 CH 0 - -")
    assert (green.requests, green.abandoned) == (0, 1)


def test_testers_and_refused_requests_are_counted_nowhere() -> None:
    green = told("green-tester-http green1 500 1 0 -- 0 - -", "ingress <NOSRV> 400 1 0 PR 0 - -")
    assert green == Totals(within=(0,) * len(LATENCY_EDGES_MS))


def test_dropped_answers_are_not_passed_over() -> None:
    with pytest.raises(LostAnswersError):
        Tallies().add(["mlctl green-http green1 200 1 0 -- 0 - -", "17 events were dropped"])


def row(backend: str, server: str, active: int, status: str) -> str:
    return f"{backend},{server},0,0,{active},0,,0,0,0,,0,,0,0,0,0,{status},1,1,0"


def test_a_colour_is_healthy_when_a_replica_is_over_both_protocols() -> None:
    servers = parse_servers(
        "\n".join(
            [
                "# pxname,svname,qcur,qmax,scur,smax,slim,stot,bin,bout,a,b,c,d,e,f,g,status,w",
                row("blue-http", "blue1", 0, "DOWN"),
                row("blue-http", "blue2", 2, "UP"),
                row("blue-grpc", "blue2", 1, "UP 1/2"),
                row("green-http", "green1", 0, "UP"),
                row("green-grpc", "green1", 0, "MAINT"),
                row("green-grpc", "blue2", 4, "UP"),
                row("green-tester-http", "green1", 1, "UP"),
            ]
        )
    )
    assert servers.healthy == {BLUE: True, GREEN: False}
    assert servers.active == {BLUE: 7, GREEN: 1}


def test_only_slots_in_service_have_a_port() -> None:
    def line(server: str, admin: int, port: int) -> str:
        return (
            f"3 blue-http 1 {server} 127.0.0.1 2 {admin} 1 1 1 15 3 3 6 0 0 0 - {port} - 0 1 - - 1"
        )

    text = "\n".join(["1", "# be_id be_name", line("blue1", 4, 70), line("blue3", 5, 71)])
    assert parse_ports(text, BLUE) == [70, *[None] * (SLOTS - 1)]
