from __future__ import annotations

import math

import pytest

from bundle.errors import ErrorCode, MlctlError
from optimize.choice import choose
from optimize.goals import Goals, Prefer
from optimize.variant import Variant
from tests.optimize.builders import failed, variant


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
def test_a_missed_gate_is_told_with_value_and_limit(
    item: Variant, goals: Goals, expected: str
) -> None:
    assert expected in reason(item, goals)


@pytest.mark.parametrize(
    "name",
    ["max_accuracy_drop", "max_p95_ms", "max_size_mb", "min_agreement", "min_centred_cosine"],
)
@pytest.mark.parametrize("value", [math.inf, math.nan, -1.0])
def test_a_limit_that_is_no_limit_is_refused(name: str, value: float) -> None:
    with pytest.raises(MlctlError, match=f"{name} = .* is out of range") as caught:
        Goals(**{name: value})  # type: ignore[arg-type]
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_a_limit_that_is_just_met_passes() -> None:
    assert chosen([variant("a", drop=0.01)], Goals()) == "a"


def test_with_labels_agreement_is_no_gate() -> None:
    assert chosen([variant("a", agreement=0.1, cosine=0.1)], Goals()) == "a"


def test_outputs_without_classes_are_judged_by_cosine_alone() -> None:
    assert chosen([variant("a", drop=None, agreement=None)], Goals()) == "a"


def test_each_preference_has_its_winner() -> None:
    variants = [
        variant("quick", ms=1.0, batch_ms=16.0, size=30),
        variant("wide", ms=2.0, batch_ms=4.0, size=20),
        variant("small", ms=3.0, batch_ms=32.0, size=10),
    ]
    assert chosen(variants, Goals(prefer=Prefer.LATENCY)) == "quick"
    assert chosen(variants, Goals(prefer=Prefer.THROUGHPUT)) == "wide"
    assert chosen(variants, Goals(prefer=Prefer.SIZE)) == "small"


def test_what_noise_cannot_separate_is_settled_by_size() -> None:
    variants = [
        variant("big", ms=1.0, spread=0.2, size=100),
        variant("small", ms=1.3, spread=0.2, size=10),
        variant("slow", ms=9.0, spread=0.2, size=1),
    ]
    judged = choose(variants, Goals())
    assert [item.chosen for item in judged] == [False, True, False]
    assert "noise cannot separate its latency from big" in judged[1].reason


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
        variant("fp32", ms=1.0, size=100),
        variant("fp16", ms=1.0, size=50),
        variant("int8", ms=1.0, size=10, batched=False),
        variant("slow", ms=9.0, size=200),
    ]
    fp32, fp16, int8, slow = choose(variants, Goals())
    assert fp16.reason == (
        "chosen: a tie: noise cannot separate its latency from fp32, int8; the smallest file "
        "wins whose requests can be batched"
    )
    assert fp32.reason == "passes, but fp16 wins by size"
    assert int8.reason == "passes, but fp16 wins: it answers requests in batches"
    assert slow.reason == "passes, but fp16 wins by latency"


def test_a_few_percent_are_noise_and_more_are_not() -> None:
    small = variant("small", ms=1.04, size=10)
    assert chosen([variant("big", ms=1.0, size=100), small], Goals()) == "small"
    small = variant("small", ms=1.06, size=10)
    judged = choose([variant("big", ms=1.0, size=100), small], Goals())
    assert judged[0].chosen
    assert judged[1].reason == "passes, but big wins by latency"


def test_a_share_over_one_is_refused() -> None:
    with pytest.raises(MlctlError, match=r"min_agreement = 1\.5 is out of range"):
        Goals(min_agreement=1.5)


def test_without_a_latency_the_smallest_wins_and_the_reason_says_why() -> None:
    variants = [variant("big", size=100, timed=False), variant("small", size=10, timed=False)]
    judged = choose(variants, Goals())
    assert [item.chosen for item in judged] == [False, True]
    assert "latency was not measured" in judged[1].reason


def test_accuracy_is_told_apart_from_the_limits_of_a_clock() -> None:
    slow, wrong = choose([variant("slow", ms=9.0), variant("wrong", drop=0.5)], Goals(max_p95_ms=1))
    assert (slow.accurate, slow.passed) == (True, False)
    assert (wrong.accurate, wrong.passed) == (False, False)


def test_nothing_is_chosen_when_nothing_passes() -> None:
    judged = choose([failed("a"), variant("b", drop=0.5)], Goals())
    assert not any(item.passed or item.chosen for item in judged)
