"""Verdicts on counters. How often they are wrong: see `test_gates_simulation`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from mlctl.rollout.domain.machine import gates
from mlctl.rollout.domain.machine.evidence import GateEvidence, begin, fold, fold_shadow, next_step
from mlctl.rollout.domain.shadow.agreement import ShadowWindow
from mlctl.rollout.domain.spec import RolloutSpec
from mlctl.rollout.domain.statistics import e_values
from mlctl.rollout.domain.statistics.verdict import Action, Gate, HoldReason, Verdict
from mlctl.rollout.domain.traffic.counts import Counts, Window

SPEC = RolloutSpec(max_p99_ms=50.0, max_error_rate=0.01)


def same(n: int = 100, errors: int = 0, slow: int = 0, tail: int = 0) -> Counts:
    return Counts(n, errors, n, slow, tail)


def block(candidate: Counts, live: Counts, *, representative: bool = True) -> Window:
    """A tick as long as a block, so that each one is a block of its own."""
    return Window(candidate, live, representative, SPEC.burst_seconds)


def folded(ticks: int, candidate: Counts, live: Counts, spec: RolloutSpec = SPEC) -> GateEvidence:
    evidence = GateEvidence()
    for _ in range(ticks):
        evidence = fold(evidence, block(candidate, live), spec)
    return evidence


def test_gates__no_evidence__is_neither_harm_nor_proof() -> None:
    assert gates.harm(GateEvidence(), SPEC) is None
    held = gates.unproved(GateEvidence(), SPEC)
    assert held is not None
    assert (held.action, held.gate) == (Action.HOLD, HoldReason.PROOF)


def test_fold__tick_without_candidate_requests__changes_nothing() -> None:
    evidence = folded(3, same(), same())
    assert fold(evidence, block(Counts(), same()), SPEC) == evidence


def test_harm__errors_beyond_the_limit__says_share_limit_and_number() -> None:
    verdict = gates.harm(folded(3, same(errors=20), same(errors=20)), SPEC)
    assert verdict is not None
    assert (verdict.action, verdict.gate) == (Action.ROLLBACK, Gate.ERRORS_VS_LIMIT)
    assert (verdict.value, verdict.limit, verdict.n) == (0.2, 0.01, 300)
    assert verdict.why == "20.00 % of 300 requests failed (limit 1 %)"


def test_harm__more_than_one_percent_slow__breaks_the_latency_limit() -> None:
    verdict = gates.harm(folded(3, same(slow=20), same()), SPEC)
    assert verdict is not None
    assert verdict.gate is Gate.LATENCY_VS_LIMIT
    assert verdict.limit == 0.01


def test_harm__one_burst__is_one_event() -> None:
    """Half of one block slow is overwhelming evidence per request, yet one single event."""
    evidence = folded(5, same(), same())
    evidence = fold(evidence, block(same(slow=50), same()), SPEC)
    assert gates.harm(evidence, SPEC) is None
    assert gates.doubtful(evidence, SPEC) is not None


def test_harm__several_gates__names_the_one_with_the_strongest_evidence() -> None:
    verdict = gates.harm(folded(3, same(errors=10, slow=40), same()), SPEC)
    assert verdict is not None
    assert verdict.gate is Gate.LATENCY_VS_LIMIT
    verdict = gates.harm(folded(3, same(errors=30, slow=15), same()), SPEC)
    assert verdict is not None
    assert verdict.gate is Gate.ERRORS_VS_LIMIT


def test_harm__two_bad_blocks__are_too_few() -> None:
    assert gates.harm(folded(2, same(errors=20), same(errors=20)), SPEC) is None
    assert gates.harm(folded(3, same(errors=20), same(errors=20)), SPEC) is not None


def test_harm__overwhelming_but_too_few_bad_blocks__asks_the_weaker_gates_too() -> None:
    """Errors in two bad blocks cannot fire; what is weaker must not fire in their place."""
    evidence = folded(2, same(errors=24), same(errors=24))
    values = evidence.log_values(SPEC)
    assert max(values, key=lambda gate: values[gate]) is Gate.ERRORS_VS_LIMIT
    assert values[Gate.ERRORS_VS_LIMIT] > math.log(len(values) / SPEC.alpha)
    assert gates.harm(evidence, SPEC) is None


def began(bad: int, before: int, live: Counts, spec: RolloutSpec = SPEC) -> GateEvidence:
    """`before` good blocks, then `bad` ones in which 8 % fail."""
    evidence = folded(before, same(), live, spec)
    for _ in range(bad):
        evidence = fold(evidence, block(same(errors=8), live), spec)
    return evidence


def test_harm__fault_begins_after_a_long_good_time__is_judged_by_its_own_blocks() -> None:
    """The change of level looks like bursts, in which hundreds of requests count as one."""
    assert gates.harm(began(4, 50, same()), SPEC) is None
    verdict = gates.harm(began(5, 50, same()), SPEC)
    assert verdict is not None
    assert (verdict.action, verdict.gate) == (Action.ROLLBACK, Gate.ERRORS_VS_LIMIT)
    assert verdict.why == "8.00 % of 500 requests failed in 5 blocks of 5 s on end (1 % allowed)"
    assert (verdict.value, verdict.limit, verdict.n) == (0.08, 0.01, 500)


def test_harm__good_block_between_bad_ones__ends_the_run() -> None:
    evidence = fold(began(4, 50, same()), block(same(), same()), SPEC)
    for _ in range(4):
        evidence = fold(evidence, block(same(errors=8), same()), SPEC)
    assert gates.harm(evidence, SPEC) is None


def test_harm__next_step__begins_a_new_run() -> None:
    evidence = next_step(began(4, 50, same()))
    evidence = fold(evidence, block(same(errors=8), same()), SPEC)
    assert evidence.of(Gate.ERRORS_VS_LIMIT).run.bad_blocks == 1
    assert gates.harm(evidence, SPEC) is None


def test_harm__fault_begins_on_both_slots__is_not_the_candidates() -> None:
    """A database that both use: the share of the live slot allows the same to the candidate."""
    spec = RolloutSpec(max_error_rate=0.3, margin=0.0)
    evidence = folded(50, same(), same(), spec)
    for _ in range(20):
        evidence = fold(evidence, block(same(errors=20), same(errors=20)), spec)
    assert evidence.of(Gate.ERRORS_VS_LIVE).run.bad_blocks == 20
    assert gates.harm(evidence, spec) is None


def test_harm__fault_begins_while_live_stays_good__is_compared_with_live_in_that_time() -> None:
    spec = RolloutSpec(max_error_rate=0.3)
    evidence = folded(50, same(), same(errors=1), spec)
    for _ in range(5):
        evidence = fold(evidence, block(same(errors=20), same(errors=2)), spec)
    verdict = gates.harm(evidence, spec)
    assert verdict is not None
    assert verdict.gate is Gate.ERRORS_VS_LIVE
    assert verdict.why.endswith("in 5 blocks of 5 s on end (9.5 % allowed)")


def test_harm__fault_begins_in_the_bake__is_compared_with_live_before() -> None:
    evidence = begin([(rejecting(1), 5.0)] * 100, SPEC)
    for share in (*[1] * 50, *[8] * 5):
        evidence = fold(evidence, block(rejecting(share), Counts()), SPEC)
    verdict = gates.harm(evidence, SPEC)
    assert verdict is not None
    assert verdict.gate is Gate.CLIENT_ERRORS_VS_LIVE
    assert verdict.why.endswith("in 5 blocks of 5 s on end (1.25 % allowed)")


def test_harm__fault_of_some_clients_begins_under_sticky_routing__takes_the_whole_traffic() -> None:
    """The clients of the two slots differ, so their shares in a short time do not compare."""
    spec = RolloutSpec(sticky=True)
    evidence = begin([(rejecting(1), 5.0)] * 100, spec)
    for share in (*[1] * 50, *[8] * 5):
        evidence = fold(evidence, block(rejecting(share), rejecting(share)), spec)
    assert evidence.of(Gate.CLIENT_ERRORS_VS_LIVE).run.bad_blocks == 5
    assert gates.harm(evidence, spec) is None


def test_harm__slow_first_tokens_begin_under_sticky_routing__are_judged_by_their_limit() -> None:
    """Errors of some clients begin at the same time, and are not judged."""
    spec = RolloutSpec(sticky=True, max_ttft_ms=500.0)
    good = Counts(100, 0, 100, client_errors=1, begun=100)
    evidence = begin([(good, 5.0)] * 100, spec)
    bad = replace(good, client_errors=8, late_first=30)
    for each in (*[good] * 50, *[bad] * 5):
        evidence = fold(evidence, block(each, replace(each, late_first=0)), spec)
    assert evidence.of(Gate.CLIENT_ERRORS_VS_LIVE).run.bad_blocks == 5
    verdict = gates.harm(evidence, spec)
    assert verdict is not None
    assert verdict.gate is Gate.TTFT_VS_LIMIT
    assert verdict.why.endswith("in 5 blocks of 5 s on end (5 % allowed)")


def test_harm__all_first_tokens_slow_under_sticky_routing__is_gross() -> None:
    spec = RolloutSpec(sticky=True, max_ttft_ms=500.0)
    evidence = GateEvidence()
    for _ in range(16):
        slow = Counts(100, 0, 100, begun=100, late_first=100)
        evidence = fold(evidence, Window(slow, same()), spec)
    verdict = gates.harm(evidence, spec)
    assert verdict is not None
    assert verdict.gate is Gate.TTFT_VS_LIMIT
    assert "in 8.0 s on end" in verdict.why


def test_harm__fault_begins_where_live_has_bursts__needs_a_longer_run() -> None:
    """One request in a burst of the live slot says little, so it takes more of them."""
    bursty = [(same(errors=50 if each % 40 == 0 else 0), 5.0) for each in range(200)]
    evidence = begin(bursty, SPEC)
    for errors in (*[0] * 50, *[8] * 5):
        evidence = fold(evidence, block(same(errors=errors), same()), SPEC)
    assert gates.harm(evidence, SPEC) is None


def test_harm__three_lone_failures_among_750__holds_or_goes_on() -> None:
    """Requests that come alone after an idle time: 0.4 %, and the limit is 1 %."""
    evidence = GateEvidence()
    for tick in range(33):
        lone = tick % 11 == 5
        ours = Counts(1, 1, 1) if lone else Counts(25, 0, 25)
        evidence = fold(evidence, block(ours, same(errors=1)), SPEC)
        assert gates.harm(evidence, SPEC) is None, tick
    assert evidence.candidate.errors == 3


def test_harm__half_of_the_requests_fail__is_gross() -> None:
    evidence = GateEvidence()
    for _ in range(3):
        evidence = fold(evidence, Window(Counts(10, 5, 10), same()), SPEC)
    verdict = gates.harm(evidence, SPEC)
    assert verdict is not None
    assert (verdict.action, verdict.gate) == (Action.ROLLBACK, Gate.ERRORS_VS_LIMIT)
    assert verdict.why == (
        "50.00 % of 30 requests failed in 1.5 s on end (0.00 % on the live revision)"
    )


def test_harm__both_slots_fail_alike__is_not_gross() -> None:
    evidence = GateEvidence()
    for _ in range(3):
        evidence = fold(evidence, Window(Counts(10, 5, 10), Counts(90, 45, 90)), SPEC)
    assert gates.harm(evidence, SPEC) is None


def test_harm__both_slots_begin_to_fail_alike__is_not_gross() -> None:
    """The live slot never failed before, so only its failures in the same ticks excuse these."""
    evidence = begin([(same(), 5.0)] * 100, SPEC)
    for _ in range(3):
        evidence = fold(evidence, Window(same(10, errors=5), same(90, errors=45)), SPEC)
    assert gates.harm(evidence, SPEC) is None


def test_harm__live_failed_as_often_in_small_blocks_before__is_not_gross() -> None:
    """Blocks with few failures are no bursts; together they are the usual share."""
    evidence = begin([(same(4, errors=1), 5.0)] * 100, SPEC)
    for _ in range(3):
        evidence = fold(evidence, Window(same(100, errors=45), Counts()), SPEC)
    assert gates.harm(evidence, SPEC) is None


def test_harm__everything_slower_than_live_ever_was_in_the_bake__is_gross_after_8_s() -> None:
    spec = RolloutSpec(max_p99_ms=None)
    evidence = begin([(same(tail=1), 5.0)] * 100, spec)
    for tick in range(16):
        assert gates.harm(evidence, spec) is None, tick
        evidence = fold(evidence, Window(same(tail=100), Counts()), spec)
    verdict = gates.harm(evidence, spec)
    assert verdict is not None
    assert verdict.gate is Gate.LATENCY_VS_LIVE


def test_unproved__live_requests_come_in_bursts__needs_more_requests() -> None:
    """The record before the rollout shows it; the candidate's own requests do not yet."""
    bursty = [(same(slow=50 if each % 20 == 0 else 0), 5.0) for each in range(200)]
    evidence = begin(bursty, SPEC)
    for _ in range(10):
        evidence = fold(evidence, block(same(), same()), SPEC)
    held = gates.unproved(evidence, SPEC)
    assert held is not None
    assert "requests count as one" in held.why
    assert gates.unproved(evidence, SPEC, bursts=False) is None


def test_sticky__clients_error_moves_with_its_client__is_no_harm() -> None:
    """All rejected requests come from one client: before on the live slot, now on the other."""
    spec = RolloutSpec(sticky=True)
    record = [(Counts(100, 0, 100, client_errors=1), 5.0)] * 100
    evidence = begin(record, spec)
    for _ in range(30):
        window = block(Counts(5, 0, 5, client_errors=1), Counts(95, 0, 95))
        evidence = fold(evidence, window, spec)
    assert gates.harm(evidence, spec) is None
    assert gates.doubtful(evidence, spec) is None
    evidence = next_step(evidence)
    for _ in range(30):
        window = block(Counts(50, 0, 50, client_errors=10), Counts(50, 0, 50))
        evidence = fold(evidence, window, spec)
    verdict = gates.harm(evidence, spec)
    assert verdict is not None
    assert verdict.gate is Gate.CLIENT_ERRORS_VS_LIVE


def test_not_excluded__good_ticks__is_a_third_of_the_representative_time() -> None:
    why = "a fault that comes less often than every 100 s is not excluded"
    assert gates.not_excluded(folded(60, same(), same()).representative_seconds) == why


def test_harm__more_than_half_beyond_the_median_limit__breaks_it() -> None:
    spec = RolloutSpec(max_p50_ms=20.0)
    late = Counts(100, 0, 100, late=80)
    verdict = gates.harm(folded(15, late, late, spec), spec)
    assert verdict is not None
    assert (verdict.gate, verdict.value, verdict.limit) == (Gate.MEDIAN_VS_LIMIT, 0.8, 0.5)
    assert "20 ms" in verdict.why
    held = gates.doubtful(folded(1, late, late, spec), spec)
    assert held is not None
    assert held.gate is Gate.MEDIAN_VS_LIMIT
    kept = folded(10, Counts(100, 0, 100, late=30), same(), spec)
    assert gates.doubtful(kept, spec) is None
    assert gates.unproved(kept, spec) is None
    near = gates.unproved(folded(10, Counts(100, 0, 100, late=49), same(), spec), spec)
    assert near is not None
    assert "took longer than 20 ms" in near.why


@pytest.mark.parametrize(
    ("spec", "late", "gate", "words"),
    [
        (
            RolloutSpec(max_ttft_ms=500.0),
            Counts(100, 0, 0, begun=100, late_first=20),
            Gate.TTFT_VS_LIMIT,
            "20.00 % of 1500 requests had their first token after more than 500 ms (limit 5 %)",
        ),
        (
            RolloutSpec(max_tpot_ms=50.0),
            Counts(100, 0, 0, continued=100, slow_tokens=20),
            Gate.TPOT_VS_LIMIT,
            "20.00 % of 1500 requests took longer than 50 ms for each token (limit 5 %)",
        ),
    ],
)
def test_harm__generated_answers_beyond_their_limit__break_it(
    spec: RolloutSpec, late: Counts, gate: Gate, words: str
) -> None:
    verdict = gates.harm(folded(15, late, late, spec), spec)

    assert verdict is not None
    assert (verdict.gate, verdict.why) == (gate, words)
    kept = replace(late, late_first=0, slow_tokens=0)
    assert gates.unproved(folded(15, kept, kept, spec), spec) is None
    assert gates.unproved(folded(15, Counts(100, 0, 0), Counts(), spec), spec) is not None


def test_unproved__small_share_of_the_traffic__proves_no_latency() -> None:
    """Batches at 5 % are emptier than they will be; what was slow there counts all the same."""
    evidence, small = GateEvidence(), block(same(), same(), representative=False)
    for _ in range(20):
        evidence = fold(evidence, small, SPEC)
    held = gates.unproved(evidence, SPEC)
    assert held is not None
    assert "took longer than 50 ms" in held.why
    bad = block(same(slow=20), same(), representative=False)
    for _ in range(20):
        evidence = fold(evidence, bad, SPEC)
    verdict = gates.harm(evidence, SPEC)
    assert verdict is not None
    assert verdict.gate is Gate.LATENCY_VS_LIMIT


SHADOWED = RolloutSpec(shadow_percent=10, shadow_requests=50, max_disagreement=0.01)


def compared(ticks: int, window: ShadowWindow, spec: RolloutSpec = SHADOWED) -> GateEvidence:
    evidence = GateEvidence()
    for _ in range(ticks):
        evidence = fold_shadow(evidence, window, spec)
    return evidence


def test_harm__one_answer_is_nan__is_harm_at_once() -> None:
    verdict = gates.harm(compared(1, ShadowWindow(10, rows=10, non_finite=1)), SHADOWED)
    assert verdict is not None
    assert (verdict.action, verdict.gate) == (Action.ROLLBACK, Gate.NON_FINITE)


def test_disagreement__beyond_or_below_the_limit__is_harm_or_proof() -> None:
    bad = ShadowWindow(100, disagreed=10, rows=100, differed=10, psi=0.0, seconds=5.0)
    verdict = gates.harm(compared(10, bad), SHADOWED)
    assert verdict is not None
    assert (verdict.gate, verdict.value) == (Gate.DISAGREEMENT, 0.1)
    good = ShadowWindow(100, rows=100, psi=0.01, seconds=5.0)
    assert gates.harm(compared(10, good), SHADOWED) is None
    assert gates.judge_shadow(compared(10, good), SHADOWED) is None
    held = gates.judge_shadow(compared(3, good), SHADOWED)
    assert held is not None
    assert held.gate is HoldReason.PROOF


def test_disagreement__no_limit__is_only_reported() -> None:
    spec = RolloutSpec(shadow_percent=10)
    evidence = compared(10, ShadowWindow(100, 50.0, 100, 50, psi=0.01), spec)
    assert gates.harm(evidence, spec) is None
    assert gates.judge_shadow(evidence, spec) is None
    assert Gate.DISAGREEMENT not in evidence.log_values(spec)


def test_judge_shadow__few_pairs_drift_or_failed_copies__holds() -> None:
    few = gates.judge_shadow(compared(1, ShadowWindow(10, rows=10)), SHADOWED)
    assert few is not None
    assert (few.gate, few.limit) == (HoldReason.DATA, 50)
    untold = gates.judge_shadow(compared(1, ShadowWindow(100, rows=100)), SHADOWED)
    assert untold is not None
    assert untold.gate is HoldReason.DATA
    drifted = gates.judge_shadow(compared(10, ShadowWindow(100, rows=100, psi=0.5)), SHADOWED)
    assert drifted is not None
    assert (drifted.gate, drifted.value) == (Gate.DRIFT, 0.5)
    fine = compared(10, ShadowWindow(100, rows=100, psi=0.0))
    failing = fold(fine, block(same(errors=5), same()), SHADOWED)
    held = gates.judge_shadow(failing, SHADOWED)
    assert held is not None
    assert held.gate is Gate.ERRORS_VS_LIMIT


def test_harm__worse_than_live_within_the_limit__is_found() -> None:
    spec = RolloutSpec(max_error_rate=0.3)
    verdict = gates.harm(folded(15, same(errors=20), same(errors=1), spec), spec)
    assert verdict is not None
    assert verdict.gate is Gate.ERRORS_VS_LIVE
    assert verdict.n == 1500


def test_harm__difference_below_the_margin__is_none() -> None:
    spec = RolloutSpec(max_error_rate=0.3, margin=0.5)
    assert gates.harm(folded(40, same(errors=5), same(errors=0), spec), spec) is None


def test_harm__candidate_hangs_without_an_answer__is_found() -> None:
    evidence = folded(15, Counts(abandoned=5), same())
    verdict = gates.harm(evidence, SPEC)
    assert verdict is not None
    assert (verdict.gate, verdict.value, verdict.n) == (Gate.ERRORS_VS_LIVE, 1.0, 75)
    assert "given up" in verdict.why


def test_harm__clients_give_up_on_both_slots__is_rare() -> None:
    def impatient(n: int) -> Traffic:
        def draw(generator: np.random.Generator) -> Counts:
            lost = int(generator.binomial(n, 0.3))
            return Counts(n - lost, 0, n - lost, abandoned=lost)

        return draw

    assert share_rolled_back(impatient(10), impatient(190), SPEC) <= SPEC.alpha


def test_harm__client_errors__count_only_against_live() -> None:
    refusing, fine = Counts(100, 0, 100, client_errors=100), same()
    verdict = gates.harm(folded(15, refusing, fine), SPEC)
    assert verdict is not None
    assert verdict.gate is Gate.CLIENT_ERRORS_VS_LIVE
    assert gates.harm(folded(15, refusing, refusing), SPEC) is None


def test_doubtful__worse_than_live_was_before__holds() -> None:
    """In the bake live has no requests: what it did before is what there is to compare with."""
    before = folded(3, same(), same())
    for bad, gate in (
        (Counts(10, 0, 10, abandoned=90), Gate.ERRORS_VS_LIVE),
        (Counts(100, 0, 100, client_errors=90), Gate.CLIENT_ERRORS_VS_LIVE),
    ):
        held = gates.doubtful(fold(before, block(bad, Counts()), SPEC), SPEC)
        assert held is not None
        assert (held.action, held.gate) == (Action.HOLD, gate)
    assert gates.doubtful(folded(3, same(errors=0), Counts()), SPEC) is None


def test_harm__candidate_hangs_in_the_bake__is_found() -> None:
    evidence = folded(20, same(), same())
    for _ in range(20):
        evidence = fold(evidence, block(same(), Counts()), SPEC)
    assert gates.harm(evidence, SPEC) is None
    ticks = 0
    while gates.harm(evidence, SPEC) is None:
        ticks += 1
        evidence = fold(evidence, block(Counts(abandoned=50), Counts()), SPEC)
    verdict = gates.harm(evidence, SPEC)
    assert verdict is not None
    assert verdict.gate is Gate.ERRORS_VS_LIVE
    assert ticks <= 3


def test_harm__clients_give_up_as_before_in_the_bake__is_rare() -> None:
    rolled_back = 0
    for seed in range(60):
        generator = np.random.default_rng(seed)
        evidence = GateEvidence()
        for tick in range(150):
            lost = int(generator.binomial(50, 0.2))
            others = int(generator.binomial(450, 0.2))
            theirs = Counts(450 - others, abandoned=others)
            window = block(Counts(50 - lost, abandoned=lost), theirs if tick < 5 else Counts())
            evidence = fold(evidence, window, SPEC)
            if gates.harm(evidence, SPEC) is not None:
                rolled_back += 1
                break
    assert rolled_back / 60 <= SPEC.alpha


def test_doubtful__noise_around_the_live_share__does_not_hold() -> None:
    live = Counts(900, 0, 900, abandoned=100)
    assert gates.doubtful(folded(1, Counts(84, 0, 84, abandoned=16), live), SPEC) is None
    assert gates.doubtful(folded(1, Counts(80, 0, 80, abandoned=20), live), SPEC) is not None


def test_harm__longer_tail_than_live__is_found() -> None:
    spec = RolloutSpec(max_p99_ms=None)
    verdict = gates.harm(folded(15, same(tail=15), same(tail=1), spec), spec)
    assert verdict is not None
    assert verdict.gate is Gate.LATENCY_VS_LIVE


def test_unproved__latency_limit_not_proved__holds() -> None:
    assert gates.unproved(folded(10, same(), same()), SPEC) is None
    held = gates.unproved(folded(10, same(slow=1), same()), SPEC)
    assert held is not None
    assert "took longer than 50 ms" in held.why


def test_unproved__no_latency_limit__needs_no_latency_proof() -> None:
    spec = RolloutSpec(max_p99_ms=None)
    assert gates.unproved(folded(10, same(slow=100), same(), spec), spec) is None


Traffic = Callable[[np.random.Generator], Counts]


def rolled_back_at(
    candidate: Traffic, live: Traffic, ticks: int, seed: int, spec: RolloutSpec
) -> int | None:
    generator = np.random.default_rng(seed)
    evidence = GateEvidence()
    for tick in range(ticks):
        window = block(candidate(generator), live(generator))
        evidence = fold(evidence, window, spec)
        if gates.harm(evidence, spec) is not None:
            return tick + 1
    return None


def share_rolled_back(candidate: Traffic, live: Traffic, spec: RolloutSpec) -> float:
    runs = 60
    hits = [rolled_back_at(candidate, live, 150, seed, spec) for seed in range(runs)]
    return sum(hit is not None for hit in hits) / runs


def test_harm__evidence_reaches_one_over_alpha__rolls_back() -> None:
    """Three errors in 70 requests of each block: more evidence than 1/alpha, less than 2/alpha."""
    evidence = folded(3, same(70, errors=3), same(70, errors=3))
    mean = e_values.log_mean(tuple(evidence.log_values(SPEC).values()))
    assert math.log(1.0 / SPEC.alpha) < mean < math.log(2.0 / SPEC.alpha)
    assert gates.harm(evidence, SPEC) is not None


def test_unproved__evidence_reaches_one_over_alpha__is_proved() -> None:
    spec = RolloutSpec(max_p99_ms=None, max_error_rate=0.01)
    threshold = math.log(1.0 / spec.alpha)
    enough = next(
        n for n in range(1, 5000) if e_values.log_mean(e_values.below((0, n), 0.01)) >= threshold
    )
    assert gates.unproved(folded(1, same(enough - 1), same(), spec), spec) is not None
    assert gates.unproved(folded(1, same(enough), same(), spec), spec) is None


def test_unproved__too_few_requests__says_share_limit_and_number() -> None:
    why = "0.00 % of 100 requests failed: too few to show that 0.01 is kept"
    held = Verdict(Action.HOLD, HoldReason.PROOF, why, 0.0, 0.01, 100)
    assert gates.unproved(folded(1, same(), same()), SPEC) == held


def test_unproved__small_bursts__says_how_many_requests_count_as_one() -> None:
    record = [(same(slow=3 if each % 20 == 0 else 0), 5.0) for each in range(200)]
    evidence = fold(begin(record, SPEC), block(same(600), same()), SPEC)
    assert 2.0 < evidence.of(Gate.LATENCY_VS_LIMIT).design_effect < 3.0
    held = gates.unproved(evidence, SPEC)
    assert held is not None
    assert held.why == (
        "0.00 % of 600 requests took longer than 50 ms: too few to show that 0.01 is kept; they "
        "come in bursts, in which 3 requests count as one"
    )


def test_doubtful__share_beyond_its_limit__says_share_limit_and_number() -> None:
    why = "2.00 % of 100 requests failed (limit 1 %); more requests will decide"
    held = Verdict(Action.HOLD, Gate.ERRORS_VS_LIMIT, why, 0.02, 0.01, 100)
    assert gates.doubtful(folded(1, same(errors=2), same(errors=2)), SPEC) == held


def rejecting(share: int, n: int = 100) -> Counts:
    return Counts(n, 0, n, client_errors=share)


def test_bake__live_has_no_requests__is_compared_with_those_before() -> None:
    record = [(rejecting(1), 5.0)] * 20
    evidence = fold(begin(record, SPEC), block(rejecting(30), Counts()), SPEC)
    held = gates.doubtful(evidence, SPEC)
    assert held is not None
    compared = "requests were rejected as the client's error (1.00 % of 2000 on the live revision)"
    assert held.why == f"30.00 % of 100 {compared}; more requests will decide"
    for _ in range(4):
        evidence = fold(evidence, block(rejecting(30), Counts()), SPEC)
    verdict = gates.harm(evidence, SPEC)
    assert verdict is not None
    assert (verdict.gate, verdict.why) == (
        Gate.CLIENT_ERRORS_VS_LIVE,
        f"30.00 % of 500 {compared}",
    )
    assert verdict.limit == 0.01 + SPEC.margin * SPEC.max_error_rate


def test_harm__live_has_requests__is_compared_with_these_alone() -> None:
    evidence = begin([(rejecting(1), 5.0)] * 20, SPEC)
    for _ in range(5):
        evidence = fold(evidence, block(rejecting(30), same()), SPEC)
    verdict = gates.harm(evidence, SPEC)
    assert verdict is not None
    assert "(0.00 % of 500 on the live revision)" in verdict.why


def test_harm__sticky__is_compared_with_the_live_slot_before_the_rollout() -> None:
    spec = RolloutSpec(sticky=True)
    evidence = begin([(rejecting(1), 5.0)] * 20, spec)
    for _ in range(5):
        evidence = fold(evidence, block(rejecting(60), rejecting(20)), spec)
    verdict = gates.harm(evidence, spec)
    assert verdict is not None
    assert "(1.00 % of 2000 on the live revision)" in verdict.why


def test_harm__live_became_as_bad_within_the_margin__is_none() -> None:
    """In the first blocks the candidate alone was bad; over all, the margin covers the rest."""
    spec = RolloutSpec(max_error_rate=0.3, margin=0.5)
    evidence = folded(4, same(errors=16), same(), spec)
    assert gates.harm(evidence, spec) is not None
    for _ in range(4):
        evidence = fold(evidence, block(same(errors=16), same(errors=4)), spec)
    values = evidence.log_values(spec)
    assert e_values.log_mean(tuple(values.values())) > math.log(1.0 / spec.alpha)
    assert gates.harm(evidence, spec) is None


def test_tick_breaks_limit__only_absolute_limits__count() -> None:
    assert gates.tick_breaks_limit(same(errors=2), SPEC)
    assert not gates.tick_breaks_limit(same(errors=1), SPEC)
    assert not gates.tick_breaks_limit(rejecting(50), SPEC)


def gross(
    ticks: list[tuple[int, int]],
    live: Counts,
    spec: RolloutSpec = SPEC,
    record: Sequence[tuple[Counts, float]] = (),
) -> Verdict | None:
    """Judge ticks of 0.5 s with (errors, requests) of the candidate."""
    evidence = begin(record, spec)
    for errors, n in ticks:
        evidence = fold(evidence, Window(Counts(n, errors, n), live), spec)
    return gates.harm(evidence, spec)


def test_harm__five_failures_in_a_row_of_ticks__are_gross_and_four_are_not() -> None:
    assert gross([(2, 5), (2, 5), (1, 5)], same()) is not None
    assert gross([(2, 5), (1, 5), (1, 5)], same()) is None
    assert gross([(2, 2), (1, 2), (1, 2)], same()) is None


def test_harm__exactly_a_third_fails__is_gross_at_once() -> None:
    assert gross([(2, 6)] * 3, same()) is not None
    assert gross([(2, 7)] * 3, same()) is None


def test_harm__live_has_bursts__is_gross_from_twice_their_share_on() -> None:
    """The worst five seconds of the record count, a block with few failures does not."""
    record = [(same(errors=26 if each % 20 == 0 else 0), 5.0) for each in range(60)]
    assert gross([(50, 100)] * 12, same(), record=record) is None
    assert gross([(52, 100)] * 3, same(), record=record) is not None
    lone = [(Counts(4, 4, 4) if each % 20 == 0 else same(), 5.0) for each in range(60)]
    assert gross([(50, 100)] * 3, same(), record=lone) is not None


def test_harm__twice_as_many_fail_as_on_live__is_gross() -> None:
    why = "50.00 % of 300 requests failed in 1.5 s on end (25.00 % on the live revision)"
    found = gross([(50, 100)] * 3, same(errors=25))
    assert found == Verdict(Action.ROLLBACK, Gate.ERRORS_VS_LIMIT, why, 0.5, 1.0 / 3.0, 300)
    assert gross([(49, 100)] * 3, same(errors=25)) is None
