"""The verdict on each variant: which fields say what, and limits that are just met."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlctl.optimize.metrics.parity import Parity
from mlctl.optimize.variants.choice import VariantVerdict, choose
from mlctl.optimize.variants.goals import Goals, Prefer
from mlctl.optimize.variants.variant import Variant
from tests.optimize.builders import failed, latency, not_applicable, parity, skipped, variant


def test_choose__winner_others_and_failures__each_has_its_verdict() -> None:
    variants = [
        variant("small", size=10),
        variant("large", size=20),
        variant("wrong", drop=0.5),
        variant("big", size=5_000_000),
        failed("broken"),
        skipped("late"),
        not_applicable("int4"),
    ]
    judged = choose(variants, Goals(prefer=Prefer.SIZE, max_size_mb=1.0))
    assert [each.variant for each in judged] == variants
    found = [(each.accurate, each.passed, each.chosen, each.verdict) for each in judged]
    assert found == [
        (True, True, True, VariantVerdict.CHOSEN),
        (True, True, False, VariantVerdict.PASSES),
        (False, False, False, VariantVerdict.REJECTED),
        (True, False, False, VariantVerdict.REJECTED),
        (False, False, False, VariantVerdict.FAILED),
        (False, False, False, VariantVerdict.SKIPPED),
        (False, False, False, VariantVerdict.NOT_APPLICABLE),
    ]
    assert judged[0].reason == "chosen: the smallest that passes"
    assert judged[1].reason == "passes, but small wins by size"
    assert judged[-2].reason == "skipped: the time limit of 60 s leaves no time for it"
    assert judged[-1].reason == "not applicable: the model has no MatMul"


def test_choose__no_variant_passes__none_is_chosen() -> None:
    (judged,) = choose([failed("broken")], Goals())
    assert (judged.passed, judged.chosen) == (False, False)
    assert judged.reason == "failed: no kernel"


def test_choose__latency_was_not_measured__takes_the_smallest() -> None:
    variants = [variant("large", size=20, timed=False), variant("small", size=10)]
    judged = choose(variants, Goals())
    assert [each.chosen for each in judged] == [False, True]
    assert judged[1].reason == (
        "chosen: the smallest that passes; latency was not measured, because the target is "
        "not on this machine"
    )


def test_choose__untimed_variant_with_a_latency_limit__fails_that_gate() -> None:
    (judged,) = choose([variant("a", timed=False)], Goals(max_p95_ms=1.0))
    assert judged.reason == (
        "its latency was not measured, because its target is not on this machine"
    )


@pytest.mark.parametrize("goals", [Goals(max_p95_ms=5.0), Goals(max_size_mb=3.0)])
def test_choose__limit_is_just_met__passes(goals: Goals) -> None:
    (judged,) = choose([variant("a", ms=5.0, size=3_000_000)], goals)
    assert judged.passed


@pytest.mark.parametrize("drop", [None, 0.0])
def test_choose__another_gate_than_the_drop_missed__has_no_bound(drop: float | None) -> None:
    item = variant("a", agreement=0.5, drop=drop)
    (judged,) = choose([item], Goals(min_agreement=0.9))
    assert judged.reason.startswith("agreement 0.5 is under")
    assert "upper bound" not in judged.reason


def test_choose__equal_variants__takes_the_first() -> None:
    first, second = choose([variant("first"), variant("second")], Goals())
    assert first.reason == "chosen: the lowest latency that passes"
    assert second.reason == (
        "passes, but first costs less accuracy; at 1.00x of its time this one is not 10% faster "
        "beyond the noise"
    )


def test_choose__equal_accuracy__takes_the_smaller() -> None:
    large, small = choose([variant("large", size=1010), variant("small", size=1000)], Goals())
    assert small.chosen
    assert not large.chosen


def test_choose__baseline_wins__is_not_compared_with_itself() -> None:
    reason = choose([variant("fp32"), variant("fp16", ms=9.0)], Goals(prefer=Prefer.SIZE))[0].reason
    assert reason == "chosen: the smallest that passes"


def test_choose__smallest_is_clearly_faster__has_no_remark() -> None:
    variants = [variant("fp32", size=100), variant("fp16", ms=0.5, size=10)]
    reason = choose(variants, Goals(prefer=Prefer.SIZE))[1].reason
    assert reason == "chosen: the smallest that passes"


@pytest.mark.parametrize("untimed", ["fp32", "fp16"])
def test_choose__one_variant_has_no_latency__reason_compares_no_times(untimed: str) -> None:
    variants = [
        variant("fp32", size=100, timed=untimed != "fp32"),
        variant("fp16", size=10, timed=untimed != "fp16", batched=False),
    ]
    assert choose(variants, Goals())[1].reason == (
        "chosen: the smallest that passes; latency was not measured, because the target is "
        "not on this machine"
    )


def test_choose__by_throughput__compares_the_best_batches() -> None:
    variants = [
        variant("fp32", ms=16.0, batch_ms=8.0, size=100),
        variant("fp16", ms=7.9, batch_ms=7.9, size=10),
    ]
    reason = choose(variants, Goals(prefer=Prefer.THROUGHPUT))[1].reason
    assert reason.startswith("passes, but fp32 costs less accuracy; at 0.99x of its time")


def test_choose__faster_by_the_width_of_a_tie__is_not_faster() -> None:
    variants = [variant("fp32", ms=1.0, size=100), variant("fp16", ms=1 / 1.05, size=10)]
    reason = choose(variants, Goals(prefer=Prefer.SIZE))[1].reason
    assert reason.endswith("; it is not faster than fp32 (0.95x its time)")


def test_choose__noisy_times__reason_has_the_interval() -> None:
    variants = [variant("fp32", spread=0.2, size=100), variant("fp16", spread=0.2, size=10)]
    reason = choose(variants, Goals())[1].reason
    assert "at 0.83 to 1.20x of its time" in reason


def with_parity(item: Variant, found: Parity) -> Variant:
    assert item.measured is not None
    return replace(item, measured=replace(item.measured, parity=found))


CONSTANT = parity(varies=False)


def test_choose__answers_that_do_not_vary__prove_no_lossy_variant() -> None:
    variants = [
        with_parity(variant("fp32", ms=5.0), CONSTANT),
        with_parity(variant("int8", drop=None), CONSTANT),
    ]
    base, lossy = choose(variants, Goals())
    assert base.chosen
    assert (lossy.accurate, lossy.passed) == (False, False)
    assert lossy.reason == (
        "the source model's answers do not vary over the judging rows (100), which proves nothing "
        "about a lossy variant: give rows of real data with --data"
    )


def test_choose__one_output_varies__a_lossy_variant_is_proved() -> None:
    outputs = {**CONSTANT.outputs, "z": parity().outputs["y"]}
    (judged,) = choose([with_parity(variant("int8"), Parity(outputs))], Goals())
    assert judged.chosen


def test_choose__language_model__is_proved_by_its_tokens() -> None:
    item = with_parity(variant("gen-int4"), CONSTANT)
    assert item.measured is not None
    item = replace(item, measured=replace(item.measured, prompt_tokens=7))
    (judged,) = choose([item], Goals())
    assert judged.chosen


def test_choose__constant_output__is_judged_by_distance_and_agreement() -> None:
    varying = parity().outputs["y"]
    for found, fault in (
        (parity(0.0, varies=False), ""),
        (parity(0.0, 1.0, 0.3, varies=False), "relative L2 of output 'y' 0.3 is over the limit"),
        (parity(0.0, 0.5, varies=False), "agreement of output 'y' 0.5 is under the limit"),
    ):
        both = Parity({**found.outputs, "z": varying})
        (judged,) = choose([with_parity(variant("int8", drop=None), both)], Goals())
        assert judged.chosen if not fault else judged.reason.startswith(fault)


def test_choose__highest_throughput__says_nothing_of_a_single_row() -> None:
    variants = [variant("fp32", ms=1.0, batch_ms=8.0), variant("int8", ms=2.0, batch_ms=4.0)]
    judged = choose(variants, Goals(prefer=Prefer.THROUGHPUT))
    assert judged[1].reason == "chosen: the highest throughput that passes"


def test_choose__smallest_beside_a_baseline_without_latency__is_not_compared() -> None:
    variants = [variant("fp32", size=20, timed=False), variant("int8", size=10)]
    judged = choose(variants, Goals(prefer=Prefer.SIZE))
    assert judged[1].reason == "chosen: the smallest that passes"


def test_choose__variant_without_a_score__ranks_as_one_that_lost_nothing() -> None:
    judged = choose([variant("a", drop=0.005), variant("b", drop=None)], Goals())
    assert [each.chosen for each in judged] == [False, True]


def generating(recipe: str, answer_ms: float, first_token_ms: float) -> Variant:
    """A language model's variant, timed for an answer of 64 tokens and the first one of it."""
    item = variant(recipe)
    assert item.measured is not None
    times = latency(64, answer_ms), latency(1, first_token_ms)
    return replace(item, measured=replace(item.measured, latency=times, prompt_tokens=7))


def test_choose__language_models__are_compared_by_their_answers_alone() -> None:
    base, slow = choose(
        [generating("gen-fp32", 64.0, 0.5), generating("gen-fp16", 64.0, 0.9)], Goals()
    )
    assert base.chosen
    assert slow.reason.startswith("passes, but gen-fp32 costs less accuracy; at 1.00x of its time")
    short = [generating("gen-fp32", 0.020, 0.0001), generating("gen-fp16", 0.012, 0.0001)]
    assert choose(short, Goals())[1].chosen
