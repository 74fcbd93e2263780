from __future__ import annotations

import math
from dataclasses import replace

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.optimize.metrics.parity import Parity
from mlctl.optimize.metrics.scores import load_metric
from mlctl.optimize.variants.choice import MEGABYTE, choose
from mlctl.optimize.variants.goals import Goals, Prefer
from mlctl.optimize.variants.variant import Variant
from tests.optimize.builders import failed, latency, parity, variant


def chosen(variants: list[Variant], goals: Goals) -> str | None:
    return next((item.variant.recipe for item in choose(variants, goals) if item.chosen), None)


def not_faster(winner: str, times: str) -> str:
    return (
        f"passes, but {winner} costs less accuracy; at {times} of its time this one is not 10% "
        "faster beyond the noise"
    )


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


def test_choose__fp16_as_fast_as_fp32__loses_unless_size_is_the_goal() -> None:
    fp32 = variant("fp32", ms=1.0, size=100 * MEGABYTE)
    variants = [fp32, variant("fp16", ms=0.99, size=50 * MEGABYTE)]
    assert [each.reason for each in choose(variants, Goals())] == [
        "chosen: no variant that costs more accuracy is 10% faster beyond the noise",
        not_faster("fp32", "0.99x"),
    ]
    by_size = choose(variants, Goals(prefer=Prefer.SIZE))
    assert [each.reason for each in by_size] == [
        "passes, but fp16 wins by size",
        "chosen: the smallest that passes; it is not faster than fp32 (0.99x its time)",
    ]
    faster = [fp32, variant("fp16", ms=0.5, size=50 * MEGABYTE)]
    assert [each.reason for each in choose(faster, Goals())] == [
        "passes, but fp16 wins by latency",
        "chosen: the lowest latency that passes",
    ]


def test_choose__numbers__need_no_agreement() -> None:
    assert chosen([variant("a", drop=None, agreement=None)], Goals()) == "a"


def test_choose__each_preference__has_its_winner() -> None:
    variants = [
        variant("quick", ms=1.0, batch_ms=4.2, size=30),
        variant("wide", ms=2.0, batch_ms=3.9, size=20),
        variant("small", ms=3.0, batch_ms=32.0, size=10),
    ]
    assert chosen(variants, Goals(prefer=Prefer.LATENCY)) == "quick"
    assert chosen(variants, Goals(prefer=Prefer.THROUGHPUT, min_gain=0.05)) == "wide"
    assert chosen(variants, Goals(prefer=Prefer.SIZE)) == "small"


@pytest.mark.parametrize(
    ("ms", "spread", "min_gain", "winner"),
    [
        pytest.param(0.89, 0.0, 0.1, "int8", id="faster by more than the least gain"),
        pytest.param(1 / 1.1, 0.0, 0.1, "fp32", id="by just the least gain"),
        pytest.param(0.95, 0.0, 0.1, "fp32", id="by less"),
        pytest.param(0.95, 0.0, 0.04, "int8", id="by more than the option says"),
        pytest.param(0.8, 0.2, 0.1, "fp32", id="the noise is larger than the gain"),
        pytest.param(0.2, 0.01, 0.1, "int8", id="the gain is larger than the noise"),
    ],
)
def test_choose__a_lossy_variant__needs_a_gain_beyond_the_noise(
    ms: float, spread: float, min_gain: float, winner: str
) -> None:
    variants = [
        variant("int8", ms=ms, spread=spread, relative_l2=0.01, size=1),
        variant("fp32", ms=1.0, spread=spread, size=100 * MEGABYTE),
    ]
    assert chosen(variants, Goals(min_gain=min_gain)) == winner


def test_choose__noise_around_the_same_times__chooses_the_same_each_time() -> None:
    """Shuffled rounds stand for repeated runs on a busy machine."""
    found = set()
    for seed in range(50):
        variants = [variant(name, spread=0.3) for name in ("fp32", "fp16", "int8")]
        shuffled = []
        for place, each in enumerate(variants):
            assert each.measured is not None
            noisy = latency(1, 1.0 - 0.02 * place, 0.3, f"{seed} {place}")
            batches = (noisy, each.measured.latency[1])
            shuffled.append(replace(each, measured=replace(each.measured, latency=batches)))
        found.add(chosen(shuffled, Goals()))
    assert found == {"fp32"}


def test_choose__three_that_get_faster__each_needs_a_gain_over_the_one_before() -> None:
    variants = [
        variant("fp32", ms=1.0),
        variant("fp16", ms=0.8, relative_l2=1e-4),
        variant("int8", ms=0.75, relative_l2=1e-2),
        variant("int4", ms=1.2, relative_l2=1e-1),
    ]
    assert [each.reason for each in choose(variants, Goals())] == [
        "passes, but fp16 wins by latency",
        "chosen: no variant that costs more accuracy is 10% faster beyond the noise",
        not_faster("fp16", "0.94x"),
        "passes, but fp16 wins by latency",
    ]


def test_choose__noise_hides_who_is_faster__the_simpler_of_the_replaced_loses_by_latency() -> None:
    variants = [
        variant("fp32", ms=1.0, spread=0.0),
        variant("fp16", ms=0.9, spread=0.3, relative_l2=1e-4),
        variant("int8", ms=0.7, spread=0.0, relative_l2=1e-2),
    ]
    fp32, fp16, int8 = choose(variants, Goals())
    assert int8.chosen
    assert {fp32.reason, fp16.reason} == {"passes, but int8 wins by latency"}


@pytest.mark.parametrize(
    ("ms", "batch_ms", "winner"),
    [
        pytest.param(0.011, 0.08, "fp32", id="9 us of a single row"),
        pytest.param(0.011, 0.07, "int8", id="9 us, and more rows in batches"),
        pytest.param(0.01, 0.08, "fp32", id="just 10 us"),
        pytest.param(0.0099, 0.08, "int8", id="more than 10 us"),
    ],
)
def test_choose__a_gain_of_microseconds__counts_if_it_is_one_in_batches(
    ms: float, batch_ms: float, winner: str
) -> None:
    variants = [
        variant("fp32", ms=0.02, batch_ms=0.08),
        variant("int8", ms=ms, batch_ms=batch_ms, relative_l2=0.01),
    ]
    judged = choose(variants, Goals())
    assert chosen(variants, Goals()) == winner
    if winner == "fp32":
        assert judged[1].reason == (
            "passes, but fp32 is less than 10 us slower, and costs less accuracy"
        )


@pytest.mark.parametrize(
    ("batch_ms", "winner"), [(11.0, "int8"), (11.1, "fp32")], ids=["within 10 %", "more"]
)
def test_choose__a_faster_row_and_slower_batches__must_not_lose_throughput(
    batch_ms: float, winner: str
) -> None:
    variants = [
        variant("fp32", ms=11.0, batch_ms=10.0),
        variant("int8", ms=7.0, batch_ms=batch_ms, relative_l2=0.01),
    ]
    judged = choose(variants, Goals())
    assert next(each.variant.recipe for each in judged if each.chosen) == winner
    if winner == "fp32":
        assert judged[1].reason == (
            "passes, but fp32 answers 800 rows/s at its best batch size, this one 721"
        )


def test_choose__language_model__is_preferred_by_the_time_of_an_answer() -> None:
    def model(recipe: str, answer_ms: float, other_ms: float) -> Variant:
        made = variant(recipe, ms=answer_ms, batch_ms=other_ms)
        assert made.measured is not None
        return replace(made, measured=replace(made.measured, prompt_tokens=8))

    variants = [model("quick", 1.0, 8.0), model("slow", 2.0, 1.0)]
    assert chosen(variants, Goals(prefer=Prefer.THROUGHPUT)) == "quick"


def test_choose__language_model__counts_no_batches_and_no_microseconds() -> None:
    def model(recipe: str, answer_ms: float, other_ms: float, cost: float) -> Variant:
        made = variant(recipe, ms=answer_ms, batch_ms=other_ms, relative_l2=cost)
        assert made.measured is not None
        return replace(made, measured=replace(made.measured, prompt_tokens=8))

    variants = [model("gen-fp32", 0.012, 1.0, 0.0), model("gen-int4", 0.008, 9.0, 0.1)]
    assert chosen(variants, Goals()) == "gen-int4"


def test_choose__the_quickest_answers_row_by_row__must_not_lose_throughput() -> None:
    variants = [
        variant("plain", ms=2.0, batch_ms=4.0, size=100),
        variant("int8", ms=1.0, size=10, batched=False),
    ]
    plain, int8 = choose(variants, Goals())
    assert plain.chosen
    assert int8.reason == (
        "passes, but plain answers 2,000 rows/s at its best batch size, this one 1,000"
    )
    plain, int8 = choose(variants, Goals(prefer=Prefer.THROUGHPUT))
    assert plain.reason == "chosen: the highest throughput that passes"
    assert int8.reason == "passes, but plain wins by throughput"
    alone = [variant("a", batched=False), variant("b", ms=0.5, batched=False, relative_l2=0.1)]
    assert choose(alone, Goals())[1].reason == "chosen: the lowest latency that passes"


def test_choose__equally_fast__the_order_is_baseline_batched_accuracy_and_size() -> None:
    variants = [
        variant("fp32", relative_l2=0.02, bound=0.001),
        variant("batched", relative_l2=0.01, bound=0.001),
        variant("drops_less", relative_l2=0.2),
        variant("nearer", relative_l2=0.1),
        variant("smaller", relative_l2=0.1, size=999),
        variant("better", relative_l2=0.3, drop=-0.5),
        variant("single", batched=False, batch_ms=0.0, size=1),
    ]
    order = []
    while variants:
        winner = chosen(variants, Goals())
        order.append(winner)
        variants = [each for each in variants if each.recipe != winner]
    assert order == ["fp32", "smaller", "nearer", "drops_less", "better", "batched", "single"]


def test_goals__a_share_over_one__is_rejected() -> None:
    with pytest.raises(MlctlError, match=r"min_agreement = 1\.5 is out of range"):
        Goals(min_agreement=1.5)


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
