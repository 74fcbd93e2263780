"""How often the gates are wrong and how soon they are right: simulated rollouts of whole services.

Requests come in bursts, as in production: a version is slow during episodes of five seconds. The
fold, the gates and the state machine are the product's, with its default plan (steps of 30 s, a
bake of 5 minutes) unless a row says otherwise; 100 requests a second. Seeds are fixed. Rows of a
thousand seeds: `python -m benchmarks.rollout`.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from benchmarks.gate_simulation import Ended, Service, Version, ends
from mlctl.rollout.domain.spec import Outcome, RolloutSpec

pytestmark = [pytest.mark.slow, pytest.mark.years]

LIMITED = RolloutSpec(max_p99_ms=50.0, max_error_rate=0.01)
COMPARED = RolloutSpec(max_error_rate=0.01)
BAKE_ONLY = replace(COMPARED, steps=(100,))
FAST = Service(tick=0.5)

GOOD = Version()
TWICE_THE_LIMIT = Version(period=75.0, slow_inside=0.3)
TWICE_THE_LIMIT_RARE = Version(period=250.0, slow_inside=1.0)
NEAR_THE_LIMIT = Version(period=187.5, slow_inside=0.3)
WELL_WITHIN = Version(period=750.0, slow_inside=0.3)


def seconds(found: list[Ended], outcome: Outcome) -> float:
    return median(each.seconds for each in found if each.outcome is outcome)


@pytest.mark.parametrize(
    ("candidate", "live", "spec", "runs", "most"),
    [
        pytest.param(TWICE_THE_LIMIT, GOOD, LIMITED, 50, 2, id="2 % slow, in bursts"),
        pytest.param(
            TWICE_THE_LIMIT_RARE,
            GOOD,
            replace(LIMITED, bake_seconds=900.0, deadline_seconds=1500.0),
            20,
            1,
            id="2 % slow, all of a rare burst, bake of 15 minutes",
        ),
        pytest.param(Version(slow=0.02), GOOD, LIMITED, 50, 2, id="2 % slow, independent"),
        pytest.param(Version(errors=0.02), GOOD, LIMITED, 50, 2, id="2 % errors"),
    ],
)
def test_promotion__candidate_is_beyond_a_limit__is_rare(
    candidate: Version, live: Version, spec: RolloutSpec, runs: int, most: int
) -> None:
    counted, _ = ends(candidate, live, spec, runs)
    assert counted[Outcome.PROMOTED] <= most, counted


@pytest.mark.parametrize(
    ("spec", "runs", "most"),
    [
        pytest.param(replace(LIMITED, deadline_seconds=1200.0), 20, 1, id="with the limit"),
        pytest.param(COMPARED, 50, 2, id="compared with live"),
    ],
)
def test_rollback__versions_are_equally_bursty_within_the_limit__is_rare(
    spec: RolloutSpec, runs: int, most: int
) -> None:
    counted, _ = ends(NEAR_THE_LIMIT, NEAR_THE_LIMIT, spec, runs)
    assert counted[Outcome.ROLLED_BACK] <= most, counted


def test_rollback__versions_have_equal_outages_of_a_third__is_rare() -> None:
    """The record shows that the live version has them; one hits the candidate alone."""
    failing = Version(period=250.0, errors_inside=0.3)
    counted, _ = ends(failing, failing, replace(COMPARED, deadline_seconds=600.0), 20)
    assert counted[Outcome.ROLLED_BACK] <= 1, counted


@pytest.mark.parametrize(
    ("candidate", "spec", "runs", "at_most_seconds"),
    [
        pytest.param(GOOD, LIMITED, 50, 430.0, id="no slow request"),
        pytest.param(WELL_WITHIN, LIMITED, 20, 1500.0, id="0.2 % slow, in bursts"),
        pytest.param(Version(slow=0.005, errors=0.005), LIMITED, 20, 600.0, id="half of a limit"),
    ],
)
def test_promotion__versions_are_equal_and_good__happens(
    candidate: Version, spec: RolloutSpec, runs: int, at_most_seconds: float
) -> None:
    counted, found = ends(candidate, candidate, spec, runs)
    assert counted[Outcome.PROMOTED] >= 0.95 * runs, counted
    assert seconds(found, Outcome.PROMOTED) <= at_most_seconds


@pytest.mark.parametrize(
    ("candidate", "live", "spec", "at_most_seconds"),
    [
        pytest.param(
            Version(slow=0.03), Version(slow=0.01), COMPARED, 120.0, id="3 % slow, live 1 %"
        ),
        pytest.param(
            Version(slow=0.06),
            Version(slow=0.01),
            replace(COMPARED, step_seconds=5.0, bake_seconds=30.0),
            40.0,
            id="6 % slow, live 1 %, short steps",
        ),
        pytest.param(Version(errors=0.05), Version(errors=0.001), COMPARED, 120.0, id="5 % errors"),
    ],
)
def test_rollback__candidate_is_worse_than_live__happens_in_time(
    candidate: Version, live: Version, spec: RolloutSpec, at_most_seconds: float
) -> None:
    counted, found = ends(candidate, live, spec, 50)
    assert counted[Outcome.ROLLED_BACK] >= 45, counted
    assert seconds(found, Outcome.ROLLED_BACK) <= at_most_seconds


def test_rollback__fault_begins_in_a_long_step__takes_half_a_minute() -> None:
    """What was good for 250 s neither outweighs the fault nor makes a burst of it."""
    spec = replace(LIMITED, steps=(50, 100), step_seconds=600.0)
    faulty = Version(errors=0.08, since=250.0)
    counted, found = ends(faulty, Version(errors=0.001), spec, 50)
    assert counted[Outcome.ROLLED_BACK] == 50
    assert max(each.seconds for each in found) <= faulty.since + 30.0


def test_rollback__half_of_the_requests_fail__takes_two_seconds() -> None:
    """At 20 requests a second; 10 s after the start, because the first second is not judged."""
    counted, found = ends(Version(errors=0.5), GOOD, BAKE_ONLY, 50, replace(FAST, per_second=20.0))
    assert counted[Outcome.ROLLED_BACK] == 50
    assert max(each.seconds for each in found) <= BAKE_ONLY.warmup_seconds + 3.0


def test_rollback__bake_is_slower_than_live_ever_was__takes_ten_seconds() -> None:
    counted, found = ends(Version(slow=1.0), Version(slow=0.01), BAKE_ONLY, 50, FAST)
    assert counted[Outcome.ROLLED_BACK] == 50
    assert max(each.seconds for each in found) <= 10.0


@pytest.mark.parametrize(
    ("candidate", "live", "service"),
    [
        pytest.param(Version(slow=0.3, until=10.0), GOOD, Service(), id="slow start"),
        pytest.param(
            Version(slow=0.005), Version(slow=0.005), Service(growth=2.0), id="drift of the day"
        ),
        pytest.param(
            Version(errors=0.005), Version(errors=0.005), Service(retries=True), id="retries"
        ),
    ],
)
def test_promotion__good_candidate_in_a_restless_service__happens(
    candidate: Version, live: Version, service: Service
) -> None:
    counted, _ = ends(candidate, live, LIMITED, 12, service)
    assert counted[Outcome.PROMOTED] == 12, counted


def test_stall__one_second_of_both_versions__rolls_nothing_back() -> None:
    stalling = Version(period=60.0, length=1.0, slow_inside=1.0)
    service = replace(FAST, shared=True)
    counted, _ = ends(stalling, stalling, COMPARED, 50, service)
    assert counted[Outcome.ROLLED_BACK] <= 2, counted


def test_sticky__one_clients_payload_is_broken__promotes_a_good_candidate() -> None:
    """The client is hashed to the candidate, which rejects its requests as the live one did."""
    spec = replace(COMPARED, sticky=True)
    counted, _ = ends(GOOD, GOOD, spec, 20, Service(stuck_client=0.01))
    assert counted[Outcome.PROMOTED] >= 18, counted


def test_sticky__candidate_rejects_good_requests__is_rolled_back() -> None:
    spec = replace(COMPARED, sticky=True)
    counted, _ = ends(Version(client_errors=0.2), Version(client_errors=0.01), spec, 20)
    assert counted[Outcome.ROLLED_BACK] >= 18, counted


@pytest.mark.parametrize("per_second", [1.0, 2.0])
def test_promotion__little_traffic__ends(per_second: float) -> None:
    counted, _ = ends(GOOD, GOOD, LIMITED, 10, Service(per_second=per_second, record_seconds=60.0))
    assert counted[Outcome.PROMOTED] >= 9, counted
