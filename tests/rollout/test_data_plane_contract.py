"""What the proxy must do for a rollout, held against a real Envoy.

Clients keep asking over HTTP and gRPC while the event happens; what they were answered is
counted. A change that we make costs no request, a candidate that dies costs next to none.
"""

from __future__ import annotations

import contextlib
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from mlctl.rollout.domain.interfaces import TrafficSplit
from mlctl.rollout.domain.spec import Slot
from mlctl.rollout.domain.traffic.counts import LATENCY_EDGES_MS, Reading, difference
from mlctl.rollout.drivers.headers import CLIENT_HEADER, TESTER_COOKIE, TESTER_HEADER, TESTER_VALUE
from tests.support.planes import Stage, TrafficClients, broken_connections, stage
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow
BLUE, GREEN = Slot


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("envoy")) as made:
        yield made


@pytest.fixture
def both(running: Stage) -> Stage:
    """Both slots healthy with one replica each, all traffic on blue."""
    running.staff(BLUE)
    running.staff(GREEN)
    running.share(100)
    return running


@pytest.fixture
def jars() -> Iterator[list[httpx.Client]]:
    """Clients that keep cookies, as browsers do."""
    with contextlib.ExitStack() as stack:
        clients = (httpx.Client(trust_env=False) for _ in range(40))
        yield [stack.enter_context(client) for client in clients]


def test_split__flips_under_traffic__costs_no_request(both: Stage) -> None:
    with TrafficClients(both.ports.listen) as clients:
        for _ in range(60):
            both.share(0)
            assert both.weights() == {BLUE: 0, GREEN: 100}
            both.share(100)
        clients.more(50)
    assert clients.failed == 0, clients.answers
    assert min(clients.answers["aa"], clients.answers["bb"]) > 0


def test_split__applied__holds_for_the_next_request(both: Stage) -> None:
    with httpx.Client(trust_env=False) as client:
        for blue, digest in ((0, "bb"), (100, "aa")) * 3:
            both.share(blue)
            told = {client.post(both.url).json()["model_version"][:2] for _ in range(3)}
            assert told == {digest}


def test_split__a_quarter__is_kept_and_counted(both: Stage) -> None:
    both.share(75)
    before = both.data_plane.read()
    with TrafficClients(both.ports.listen) as clients:
        clients.more(800)
    assert clients.failed == 0, clients.answers
    assert 0.17 < clients.answers["bb"] / clients.sent < 0.33

    def counted() -> bool:
        parts = difference(before, both.data_plane.read())
        assert parts is not None
        told = {BLUE: clients.answers["aa"], GREEN: clients.answers["bb"]}
        return all(parts[c].requests == parts[c].timed == told[c] for c in Slot)

    wait_until(counted)


def test_counts__streamed_answers__are_counted_but_not_timed(both: Stage) -> None:
    both.share(0)
    before = both.data_plane.read()
    with httpx.Client(trust_env=False) as client:
        for path in ("", "_stream", "_stream"):
            assert client.post(both.url + path).status_code == httpx.codes.OK

    def counted() -> bool:
        parts = difference(before, both.data_plane.read())
        assert parts is not None
        return (parts[GREEN].requests, parts[GREEN].timed, parts[GREEN].errors) == (3, 1, 0)

    wait_until(counted)


def test_counts__errors_and_latencies__are_exact(both: Stage) -> None:
    both.replicas[GREEN][0].end()
    both.staff(GREEN, 1, "?delay=0.06&fail=0.3&full=0.3")
    both.share(0)
    before = both.data_plane.read()
    with TrafficClients(both.ports.listen, clients=8) as clients:
        clients.more(80)
    wrong = clients.failed
    assert 0 < wrong < clients.sent

    def counted() -> bool:
        parts = difference(before, both.data_plane.read())
        assert parts is not None
        green = parts[GREEN]
        assert green.slower_than(59.0, LATENCY_EDGES_MS) == green.timed
        assert green.slower_than(10_000.0, LATENCY_EDGES_MS) == 0
        assert green.client_errors == 0
        return (green.requests, green.timed, green.errors) == (clients.sent, clients.sent, wrong)

    wait_until(counted)
    both.replicas[GREEN][0].end()


def test_counts__rejected_by_clients_limits__are_no_requests_and_no_errors(both: Stage) -> None:
    both.replicas[GREEN][0].end()
    both.staff(GREEN, 1, "?fail=0.3&limit=0.5")
    both.share(0)
    before = both.data_plane.read()

    def limited() -> list[str]:
        return [each for each in list(clients.answers) if each == "429" or "per second" in each]

    with TrafficClients(both.ports.listen) as clients:
        clients.more(80)
        wait_until(lambda: len(limited()) > 1, what="a limit over HTTP, and one over gRPC")
    rejected = sum(clients.answers[answer] for answer in limited())
    wrong = clients.failed - rejected
    assert 0 < wrong < clients.failed

    def counted() -> bool:
        parts = difference(before, both.data_plane.read())
        assert parts is not None
        green = parts[GREEN]
        assert green.client_errors == 0
        return (green.requests, green.errors) == (clients.sent - rejected, wrong)

    wait_until(counted)
    both.replicas[GREEN][0].end()


def test_promotion__old_slot_drained_and_stopped__costs_no_request(both: Stage) -> None:
    with TrafficClients(both.ports.listen) as clients:
        for blue in (99, 50, 0):
            both.share(blue)
            clients.more(50)
        both.data_plane.connect(BLUE, ())
        wait_until(lambda: both.data_plane.read().active[BLUE] == 0)
        both.replicas[BLUE][0].end(signal.SIGTERM)
        clients.more(50)
        both.staff(BLUE)
        both.share(100)
        clients.more(50)
    assert clients.failed == 0, clients.answers


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "term"])
def test_candidate__dies_at_half_of_the_traffic__costs_few_requests(
    both: Stage, number: int
) -> None:
    both.share(50)
    before = both.data_plane.read()
    broken_before = broken_connections(both.ports, GREEN)
    with TrafficClients(both.ports.listen) as clients:
        clients.more(500)
        both.replicas[GREEN][0].end(number)
        wait_until(lambda: not both.data_plane.read().healthy[GREEN], what="the death is seen")
        clients.more(4000)
    # What the process had in hand when it vanished.
    broken = broken_connections(both.ports, GREEN) - broken_before
    assert clients.failed <= clients.count * broken, clients.answers
    wait_until(lambda: _counted_right(both, before, clients), what="the counts are exact")


def test_failover__candidate_is_back_within_a_tick__its_requests_are_its_failures(
    both: Stage,
) -> None:
    both.share(50)
    before = both.data_plane.read()
    assert before.healthy[GREEN]
    with TrafficClients(both.ports.listen) as clients:
        clients.more(100)
        both.replicas[GREEN][0].end()
        clients.more(100)
        both.staff(GREEN)
        answered = clients.answers["bb"]
        wait_until(lambda: clients.answers["bb"] > answered, what="the new replica answers")
    assert both.data_plane.read().healthy[GREEN]
    wait_until(lambda: _counted_right(both, before, clients), what="the counts are exact")


def _counted_right(both: Stage, before: Reading, clients: TrafficClients) -> bool:
    """Whether all requests are counted, and those of green that it did not answer as errors."""
    parts = difference(before, both.data_plane.read())
    assert parts is not None
    blue, green = parts[BLUE], parts[GREEN]
    return (
        blue.requests + green.requests == clients.sent
        and (blue.errors, green.errors) == (0, green.requests - clients.answers["bb"])
        and (blue.timed, green.timed) == (blue.requests, clients.answers["bb"])
        and green.errors > clients.failed
    )


def test_replica__dies__leaves_its_slot_healthy(both: Stage) -> None:
    first, second = both.staff(GREEN, 2, "?trace=1")
    both.share(0)
    broken_before = broken_connections(both.ports, GREEN)
    with TrafficClients(both.ports.listen) as clients:
        wait_until(lambda: b"request" in second.log.read_bytes(), what="both are in use")
        first.end()
        clients.more(400)
        assert both.data_plane.read().healthy[GREEN]
    # On a busy machine the kernel accepts a connection while the process ends.
    broken = broken_connections(both.ports, GREEN) - broken_before
    assert clients.failed <= clients.count * broken, clients.answers
    assert clients.answers["bb"] > clients.answers["aa"]


def test_replicas__of_one_slot__share_its_requests(both: Stage) -> None:
    both.replicas[GREEN][0].end()
    first, second = both.staff(GREEN, 2, "?trace=1")
    both.share(0)
    with TrafficClients(both.ports.listen) as clients:
        wait_until(lambda: all(b"request" in one.log.read_bytes() for one in (first, second)))
    assert clients.failed == 0, clients.answers


def test_proxy__restarted__keeps_the_split(both: Stage) -> None:
    both.data_plane.apply(TrafficSplit({BLUE: 35, GREEN: 65}, testers=GREEN))
    both.stop_proxy()
    both.start_proxy()
    assert both.data_plane.weights() == {BLUE: 35, GREEN: 65}
    wait_until(lambda: all(both.data_plane.read().healthy.values()))
    with TrafficClients(both.ports.listen) as clients:
        clients.more(200)
    assert clients.failed == 0, clients.answers
    assert min(clients.answers["aa"], clients.answers["bb"]) > 20


def test_slot__without_a_process__is_covered_by_the_other(both: Stage) -> None:
    both.data_plane.connect(GREEN, ())
    both.share(0)
    wait_until(lambda: not both.data_plane.read().healthy[GREEN])
    with TrafficClients(both.ports.listen) as clients:
        clients.more(50)
    assert set(clients.answers) == {"aa"}


def test_testers__header_or_cookie__reach_the_candidate_uncounted(both: Stage) -> None:
    both.data_plane.apply(TrafficSplit({BLUE: 100}, testers=GREEN))
    before = both.data_plane.read()
    with TrafficClients(both.ports.listen, tester=True) as testers:
        testers.more(50)
    assert set(testers.answers) == {"bb"}
    with httpx.Client(trust_env=False, headers={"cookie": f"a=b; {TESTER_COOKIE}=candidate"}) as c:
        assert c.post(both.url).json()["model_version"][:2] == "bb"
    parts = difference(before, both.data_plane.read())
    assert parts is not None
    assert {(part.requests, part.abandoned) for part in parts.values()} == {(0, 0)}
    both.share(100)
    with httpx.Client(trust_env=False, headers={TESTER_HEADER: TESTER_VALUE}) as client:
        assert client.post(both.url).json()["model_version"][:2] == "aa"


def test_sticky__weight_rises__client_keeps_its_slot(both: Stage, jars: list[httpx.Client]) -> None:
    sticky = {w: TrafficSplit({BLUE: 100 - w, GREEN: w}, sticky=True) for w in (0, 30, 60)}
    both.data_plane.apply(sticky[30])
    named, cookies = _by_header(both, 100), [_ask(both, jar) for jar in jars]
    assert 10 <= Counter(named)["bb"] <= 55
    assert _by_header(both, 100) == named
    assert [_ask(both, jar) for jar in jars] == cookies
    both.data_plane.apply(sticky[60])
    after = _by_header(both, 100) + [_ask(both, jar) for jar in jars]
    kept = [new for old, new in zip(named + cookies, after, strict=True) if old == "bb"]
    assert set(kept) == {"bb"}
    assert Counter(after)["bb"] > len(kept)
    with TrafficClients(both.ports.listen) as clients:
        clients.more(50)
    assert clients.failed == 0, clients.answers
    both.data_plane.apply(sticky[0])
    assert {*_by_header(both, 20), *(_ask(both, jar) for jar in jars)} == {"aa"}


def _by_header(both: Stage, n: int) -> list[str]:
    with httpx.Client(trust_env=False) as client:
        return [_ask(both, client, {CLIENT_HEADER: f"user-{i}"}) for i in range(n)]


def _ask(both: Stage, client: httpx.Client, headers: dict[str, str] | None = None) -> str:
    return str(client.post(both.url, headers=headers).json()["model_version"][:2])


def test_shadow__copies__reach_only_the_candidate(both: Stage) -> None:
    shadowed = TrafficSplit({BLUE: 100}, mirror=100, mirror_to=GREEN)
    for slot in Slot:
        both.replicas[slot][0].end()
        both.staff(slot, 1, "?trace=1")
    both.data_plane.apply(shadowed)
    before = both.data_plane.read()
    with TrafficClients(both.ports.listen) as clients:
        clients.more(100)
    assert set(clients.answers) == {"aa"}
    asked, copied = (both.replicas[slot][0].log for slot in Slot)
    wait_until(lambda: _ids(asked, "request") == _ids(copied, "copy"))
    assert len(_ids(asked, "request")) == clients.sent
    after = both.data_plane.read()
    parts = difference(before, after)
    assert parts is not None
    assert (parts[GREEN].requests, parts[GREEN].abandoned) == (0, 0)
    assert after.shadow[GREEN].requests - before.shadow[GREEN].requests == clients.sent


def _ids(log: Path, kind: str) -> set[str]:
    lines = (line.split() for line in log.read_text().splitlines())
    return {words[1] for words in lines if words[0] == kind}
