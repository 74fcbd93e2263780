from __future__ import annotations

import math
from dataclasses import replace

import pytest

from bundle.errors import ErrorCode, MlctlError
from optimize.choice import MEGABYTE, choose
from optimize.goals import Goals, Prefer
from optimize.metrics.parity import Parity
from optimize.metrics.scores import load_metric
from optimize.variant import Variant
from tests.optimize.builders import failed, parity, variant


def chosen(variants: list[Variant], goals: Goals) -> str | None:
    return next((item.variant.recipe for item in choose(variants, goals) if item.chosen), None)


def reason(item: Variant, goals: Goals) -> str:
    judged = choose([item], goals)[0]
    assert not judged.passed
    return judged.reason


@pytest.mark.parametrize(
    ("item", "goals", "expected"),
    [
        (variant("a", drop=0.02), Goals(), "accuracy drop 0.02 is over the limit 0.01"),
        (variant("a", drop=None, cosine=0.5), Goals(), "centred cosine 0.5 is under the limit"),
        (variant("a", drop=None, agreement=0.5), Goals(), "agreement 0.5 is under the limit 0.99"),
        (variant("a", ms=5.0), Goals(max_p95_ms=4.0), "p95 latency in ms 5 is over the limit 4"),
        (
            variant("a", size=3_000_000),
            Goals(max_size_mb=2.0),
            "size in MB 3 is over the limit 2",
        ),
        (failed("a"), Goals(), "failed: no kernel"),
        (
            variant("a", drop=0.005, bound=0.01),
            Goals(),
            "accuracy drop 0.015 is over the limit 0.01 (upper bound; 0.005 on these 100 rows)",
        ),
        (variant("a", agreement=0.5), Goals(min_agreement=0.9), "agreement 0.5 is under"),
        (variant("a", cosine=0.5), Goals(min_centred_cosine=0.9), "centred cosine 0.5 is under"),
        (variant("a", timed=False), Goals(max_p95_ms=1.0), "latency was not measured"),
    ],
)
def test_choose__a_missed_gate__has_value_and_limit(
    item: Variant, goals: Goals, expected: str
) -> None:
    assert expected in reason(item, goals)


@pytest.mark.parametrize(
    "name",
    ["max_accuracy_drop", "max_p95_ms", "max_size_mb", "min_agreement", "min_centred_cosine"],
)
@pytest.mark.parametrize("value", [math.inf, math.nan, -1.0])
def test_goals__a_limit_out_of_range__is_rejected(name: str, value: float) -> None:
    with pytest.raises(MlctlError, match=f"{name} = .* is out of range") as caught:
        Goals(**{name: value})  # type: ignore[arg-type]
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_choose__a_limit_just_met__passes() -> None:
    assert chosen([variant("a", drop=0.01)], Goals()) == "a"


def test_choose__with_labels__parity_is_no_gate() -> None:
    assert chosen([variant("a", agreement=0.1, cosine=0.1)], Goals()) == "a"


def test_choose__an_output_that_the_metric_does_not_judge__must_be_near_the_source() -> None:
    first = variant("a")
    assert first.measured is not None
    outputs = {**first.measured.parity.outputs, **parity(0.5, None, 0.0, "hidden").outputs}
    both = replace(first, measured=replace(first.measured, parity=Parity(outputs)))
    assert "centred cosine of output 'hidden' 0.5 is under the limit 0.98" in reason(both, Goals())
    assert chosen([both], Goals(min_centred_cosine=0.4)) == "a"


def test_choose__a_scaled_forecast_without_labels__is_rejected() -> None:
    scaled = variant("a", drop=None, agreement=None, relative_l2=0.5)
    assert "relative L2 0.5 is over the limit 0.2" in reason(scaled, Goals())
    assert chosen([scaled], Goals(min_centred_cosine=0.8)) == "a"


def test_goals__an_error_metric__may_rise_by_a_share_of_the_source() -> None:
    rmse, accuracy = load_metric("rmse"), load_metric("accuracy")
    assert Goals().resolved(rmse, 2000.0).accuracy_drop == pytest.approx(20.0)
    assert Goals().resolved(rmse, 1e-3).accuracy_drop == pytest.approx(1e-5)
    assert Goals(max_accuracy_drop=0.5).resolved(rmse, 2000.0).accuracy_drop == 0.5
    assert Goals().resolved(accuracy, 0.9).accuracy_drop == 0.01
    assert "rmse may rise by at most 1% of the source's" in Goals().words(rmse)


def test_choose__fp16_as_fast_as_fp32__says_that_it_is_not_faster() -> None:
    fp32 = variant("fp32", ms=1.0, size=100 * MEGABYTE)
    variants = [fp32, variant("fp16", ms=0.99, size=50 * MEGABYTE)]
    assert choose(variants, Goals())[1].reason.endswith(
        "it is not faster than fp32 (0.99x its time)"
    )
    by_size = choose(variants, Goals(prefer=Prefer.SIZE))[1].reason
    assert (
        by_size == "chosen: the smallest that passes; it is not faster than fp32 (0.99x its time)"
    )
    faster = [fp32, variant("fp16", ms=0.5, size=50 * MEGABYTE)]
    assert choose(faster, Goals())[1].reason == "chosen: the lowest latency that passes"


def test_choose__numbers__need_no_agreement() -> None:
    assert chosen([variant("a", drop=None, agreement=None)], Goals()) == "a"


def test_choose__each_preference__has_its_winner() -> None:
    variants = [
        variant("quick", ms=1.0, batch_ms=16.0, size=30),
        variant("wide", ms=2.0, batch_ms=4.0, size=20),
        variant("small", ms=3.0, batch_ms=32.0, size=10),
    ]
    assert chosen(variants, Goals(prefer=Prefer.LATENCY)) == "quick"
    assert chosen(variants, Goals(prefer=Prefer.THROUGHPUT)) == "wide"
    assert chosen(variants, Goals(prefer=Prefer.SIZE)) == "small"


def test_choose__latencies_that_noise_does_not_separate__the_smallest_wins() -> None:
    variants = [
        variant("big", ms=1.0, spread=0.2, size=100 * MEGABYTE),
        variant("small", ms=1.3, spread=0.2, size=10 * MEGABYTE),
        variant("slow", ms=9.0, spread=0.2, size=1),
    ]
    judged = choose(variants, Goals())
    assert [item.chosen for item in judged] == [False, True, False]
    assert "differs from big by less than 5%, 10 us or the noise" in judged[1].reason


@pytest.mark.parametrize(
    ("ms", "batch_ms", "winner"),
    [(0.029, 0.07, "small"), (0.031, 0.07, "quick"), (0.029, 0.12, "quick")],
)
def test_choose__a_few_microseconds_slower__wins_if_smaller_and_as_good_in_batches(
    ms: float, batch_ms: float, winner: str
) -> None:
    variants = [
        variant("quick", ms=0.02, batch_ms=0.08, size=100 * MEGABYTE),
        variant("small", ms=ms, batch_ms=batch_ms, size=10 * MEGABYTE),
    ]
    assert chosen(variants, Goals()) == winner
    assert chosen(variants, Goals(prefer=Prefer.THROUGHPUT)) == (
        "small" if batch_ms < 0.08 else "quick"
    )


def test_choose__exactly_10_us_slower_and_as_good_in_batches__is_a_tie() -> None:
    variants = [
        variant("quick", ms=0.01, batch_ms=0.04, size=100 * MEGABYTE),
        variant("small", ms=0.02, batch_ms=0.04, size=10 * MEGABYTE),
    ]
    assert chosen(variants, Goals()) == "small"
    edge = [variants[0], variant("small", ms=0.02, batch_ms=0.042, size=10 * MEGABYTE)]
    assert chosen(edge, Goals()) == "small"


def test_choose__language_model__is_preferred_by_the_time_of_an_answer() -> None:
    def model(recipe: str, answer_ms: float, other_ms: float) -> Variant:
        made = variant(recipe, ms=answer_ms, batch_ms=other_ms)
        assert made.measured is not None
        return replace(made, measured=replace(made.measured, prompt_tokens=8))

    variants = [model("quick", 1.0, 8.0), model("slow", 2.0, 1.0)]
    assert chosen(variants, Goals(prefer=Prefer.THROUGHPUT)) == "quick"


def test_choose__the_quickest_answers_row_by_row__says_what_that_costs() -> None:
    variants = [
        variant("plain", ms=2.0, batch_ms=4.0, size=100),
        variant("int8", ms=1.0, size=10, batched=False),
    ]
    plain, int8 = choose(variants, Goals())
    assert int8.reason == (
        "chosen: the lowest latency that passes; but it answers requests one row at a time, "
        "1,000 rows/s, where another variant reaches 2,000 in batches: --prefer throughput "
        "chooses by that"
    )
    assert plain.reason == "passes, but int8 wins by latency"
    plain, int8 = choose(variants, Goals(prefer=Prefer.THROUGHPUT))
    assert plain.reason == "chosen: the highest throughput that passes"
    assert int8.reason == "passes, but plain wins by throughput"


def test_choose__row_by_row_without_a_loss__says_nothing() -> None:
    variants = [variant("a", ms=2.0, batch_ms=8.0), variant("b", ms=0.5, batched=False)]
    assert choose(variants, Goals())[1].reason == "chosen: the lowest latency that passes"
    alone = [variant("a", batched=False), variant("b", ms=0.5, batched=False)]
    assert choose(alone, Goals())[1].reason == "chosen: the lowest latency that passes"


def test_choose__a_tie__goes_to_a_variant_that_can_be_batched() -> None:
    variants = [
        variant("fp32", ms=1.0, size=100 * MEGABYTE),
        variant("fp16", ms=1.0, size=50 * MEGABYTE),
        variant("int8", ms=1.0, size=10 * MEGABYTE, batched=False),
        variant("slow", ms=9.0, size=200 * MEGABYTE),
    ]
    fp32, fp16, int8, slow = choose(variants, Goals())
    assert fp16.reason == (
        "chosen: a tie: its latency differs from fp32, int8 by less than 5%, 10 us or the "
        "noise; it is the smallest of those whose requests can be batched; it is not faster than "
        "fp32 (1.00x its time)"
    )
    assert fp32.reason == "passes, but fp16 wins by size"
    assert int8.reason == "passes, but fp16 wins: it answers requests in batches"
    assert slow.reason == "passes, but fp16 wins by latency"


def test_choose__less_than_5_percent__is_a_tie() -> None:
    big = variant("big", ms=1.0, size=100 * MEGABYTE)
    small = variant("small", ms=1.04, size=10 * MEGABYTE)
    assert chosen([big, small], Goals()) == "small"
    small = variant("small", ms=1.06, size=10 * MEGABYTE)
    judged = choose([big, small], Goals())
    assert judged[0].chosen
    assert judged[1].reason == "passes, but big wins by latency"


def test_goals__a_share_over_one__is_rejected() -> None:
    with pytest.raises(MlctlError, match=r"min_agreement = 1\.5 is out of range"):
        Goals(min_agreement=1.5)


def test_choose__a_tie_of_small_models__goes_to_the_one_that_costs_the_least_accuracy() -> None:
    variants = [
        variant("int4", ms=1.0, size=2_000, drop=-0.01, bound=0.014, relative_l2=0.1),
        variant("int8", ms=0.99, size=3_000, bound=0.002, relative_l2=0.01),
        variant("fp16", ms=1.01, size=4_000, relative_l2=1e-4),
        variant("fp32", ms=1.0, size=9_000, relative_l2=1e-7),
    ]
    int4, int8, fp16, fp32 = choose(variants, Goals())
    assert fp32.reason == (
        "chosen: a tie: its latency differs from int4, int8, fp16 by less than 5%, 10 us or the "
        "noise; it costs the least accuracy"
    )
    assert {item.reason for item in (int4, int8, fp16)} == {
        "passes, but fp32 wins: it costs less accuracy"
    }
    unlabelled = [variant("int8", drop=None, relative_l2=0.01), variant("fp16", drop=None)]
    assert chosen(unlabelled, Goals()) == "fp16"
    assert chosen([variant("int8", drop=None), variant("fp16", drop=0.005)], Goals()) == "int8"


@pytest.mark.parametrize(("saved", "winner"), [(10 * MEGABYTE, "fp32"), (10_000_001, "int8")])
def test_choose__a_tie__goes_to_a_file_that_saves_more_than_10_mb(saved: int, winner: str) -> None:
    int8 = variant("int8", size=5 * MEGABYTE, drop=0.005)
    assert chosen([variant("fp32", size=5 * MEGABYTE + saved), int8], Goals()) == winner


def test_choose__a_tie_with_a_file_10_mb_larger__goes_by_accuracy() -> None:
    small = variant("small", size=5 * MEGABYTE)
    large = variant("large", size=15 * MEGABYTE, drop=0.005)
    reason = choose([large, small], Goals(prefer=Prefer.THROUGHPUT))
    assert reason[0].reason == "passes, but small wins: it costs less accuracy"
    assert reason[1].reason == (
        "chosen: a tie: its throughput differs from large by less than 5% or the noise; "
        "it costs the least accuracy"
    )


def test_choose__no_latency__the_smallest_wins_and_the_reason_says_why() -> None:
    variants = [variant("big", size=100, timed=False), variant("small", size=10, timed=False)]
    judged = choose(variants, Goals())
    assert [item.chosen for item in judged] == [False, True]
    assert "latency was not measured" in judged[1].reason


def test_choose__too_slow__is_accurate_all_the_same() -> None:
    slow, wrong = choose([variant("slow", ms=9.0), variant("wrong", drop=0.5)], Goals(max_p95_ms=1))
    assert (slow.accurate, slow.passed) == (True, False)
    assert (wrong.accurate, wrong.passed) == (False, False)


def test_choose__nothing_passes__chooses_nothing() -> None:
    judged = choose([failed("a"), variant("b", drop=0.5)], Goals())
    assert not any(item.passed or item.chosen for item in judged)
