from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from mlctl.rollout.daemon.vitals import Counters, Pulse, Vitals, read_counters
from mlctl.rollout.domain.interfaces import RunningRevision
from mlctl.rollout.domain.process_ref import ProcessRef
from mlctl.rollout.domain.spec import Endpoint
from mlctl.rollout.domain.traffic.autoscale import ReplicaLoad
from tests.support.rollouts import revision
from tests.support.wait import wait_until

METRICS = """\
# HELP mlctl_queue_rows Rows waiting now, over all workers.
# TYPE mlctl_queue_rows gauge
mlctl_queue_rows{model="a"} 3.0
mlctl_queue_rows{model="b"} 4.0
# HELP mlctl_infer_seconds Seconds each batch ran.
# TYPE mlctl_infer_seconds histogram
mlctl_infer_seconds_bucket{le="+Inf",model="a"} 7.0
mlctl_infer_seconds_count{model="a"} 7.0
mlctl_infer_seconds_sum{model="a"} 1.5
# HELP mlctl_batch_rows Rows of each batch.
# TYPE mlctl_batch_rows histogram
mlctl_batch_rows_bucket{le="+Inf",model="a"} 7.0
mlctl_batch_rows_count{model="a"} 7.0
mlctl_batch_rows_sum{model="a"} 90.0
"""


ANSWERS = """\
# TYPE mlctl_queue_rows gauge
mlctl_queue_rows{model="a"} 0.0
# TYPE mlctl_time_to_first_token_seconds histogram
mlctl_time_to_first_token_seconds_bucket{le="0.005",model="a"} 1.0
mlctl_time_to_first_token_seconds_bucket{le="0.01",model="a"} 3.0
mlctl_time_to_first_token_seconds_bucket{le="+Inf",model="a"} 4.0
mlctl_time_to_first_token_seconds_bucket{le="0.005",model="b"} 1.0
mlctl_time_to_first_token_seconds_bucket{le="0.01",model="b"} 1.0
mlctl_time_to_first_token_seconds_bucket{le="+Inf",model="b"} 1.0
# TYPE mlctl_time_per_output_token_seconds histogram
mlctl_time_per_output_token_seconds_bucket{le="0.0025",model="a"} 2.0
mlctl_time_per_output_token_seconds_bucket{le="+Inf",model="a"} 2.0
"""


def beats(*answers: tuple[float, int | None]) -> Pulse:
    pulse = Pulse()
    for at, status in answers:
        pulse = pulse.beat(status, at)
    return pulse


def test_read_counters__generated_answers__are_counted_at_the_edges_of_their_gates() -> None:
    found = read_counters(ANSWERS, 0.0)

    assert found is not None
    assert (found.answers.first.timed, found.answers.first.within[:2]) == (5, (2, 4))
    assert (found.answers.each.timed, found.answers.each.within[1]) == (2, 2)


def test_hung__lasting_silence__is_found() -> None:
    silent = ((0.0, None), (5.0, None), (10.0, None))
    assert not beats(*silent).hung(14.0, 15.0)
    assert beats(*silent).hung(15.0, 15.0)
    assert not beats(*silent, (12.0, 200)).hung(20.0, 15.0)


def test_hung__few_probes_in_a_long_time__is_not_found() -> None:
    """As after a machine that slept: much time has passed, but hardly anything was asked."""
    assert not beats((0.0, None), (100.0, None)).hung(100.0, 15.0)


def test_hung__server_reports_it_repeatedly__is_found() -> None:
    assert not beats((0.0, 503), (1.0, 503)).hung(1.0, 15.0)
    assert beats((0.0, 503), (1.0, 503), (2.0, 503)).hung(2.0, 15.0)


def test_hung__one_worker_of_several__is_found() -> None:
    assert beats((0.0, 503), (1.0, 200), (2.0, 503), (3.0, 200), (4.0, 503)).hung(4.0, 15.0)
    assert not beats((0.0, 503), (61.0, 503), (122.0, 503)).hung(122.0, 15.0)


def test_hung__another_error_status__is_not_found() -> None:
    assert not beats(*((float(at), 404) for at in range(100))).hung(100.0, 15.0)


def test_read_counters__several_models__are_summed() -> None:
    assert read_counters(METRICS, 5.0) == Counters(5.0, 7.0, 1.5)
    assert read_counters("# nothing\n", 5.0) is None


def test_load__two_readings__is_per_worker_and_second() -> None:
    before, now = Counters(10.0, 0.0, 3.0), Counters(12.0, 8.0, 5.0)
    assert now.load(before, workers=2) == ReplicaLoad(queue_rows=4.0, busy=0.5)
    assert before.load(now, workers=1).busy <= 1.0  # a counter that began again


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = METRICS.encode() if self.path == "/metrics" else b"{}"
        self.send_response(200 if self.path == "/metrics" else self.server.live)  # type: ignore[attr-defined]
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[http.server.ThreadingHTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.live = 200  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_vitals__no_longer_watched__are_forgotten(
    server: http.server.ThreadingHTTPServer,
) -> None:
    endpoint = Endpoint(server.server_address[1], 1)
    served = RunningRevision(
        revision("tiny:aa"), endpoint, ProcessRef(1, 0.0, "token"), "/dev/null"
    )
    with Vitals(hung_seconds=60.0, workers=1) as vitals:
        vitals.watch([served], metrics=True)
        wait_until(lambda: vitals.loads([served]))
        assert vitals.loads([served]) == (ReplicaLoad(7.0, 0.0),)
        assert not vitals.hung(served)
        server.live = 503  # type: ignore[attr-defined]
        wait_until(lambda: vitals.hung(served))
        vitals.watch([], metrics=True)
        assert vitals.loads([served]) == ()
        assert not vitals.hung(served)
