import pytest

from optimize.estimate import Basis, Kind, Past, Work, estimate


def work(
    export: str = "mine", megabytes: float = 10.0, rows: int = 100, *, recipe: str = "int8-cpu"
) -> Work:
    return Work(Kind.MODEL, export, megabytes, rows, recipe, "int8")


def test_without_history_it_is_the_rule_and_grows_with_the_model_and_the_rows() -> None:
    small, large = estimate(work(), ()), estimate(work(megabytes=100.0), ())
    assert small.basis is Basis.RULE
    assert 0 < small.seconds < large.seconds
    assert estimate(work(rows=1000), ()).seconds > small.seconds


def test_what_this_model_took_before_is_believed() -> None:
    past = [Past(work(), seconds) for seconds in (4.0, 5.0, 90.0)]
    found = estimate(work(), [*past, Past(work("other"), 1000.0)])
    assert (found.seconds, found.basis) == (5.0, Basis.THIS_MODEL)


def test_other_models_correct_the_rule() -> None:
    rule = estimate(work(), ()).seconds
    twice = Past(work("other", 100.0), 2 * estimate(work("other", 100.0), ()).seconds)
    found = estimate(work(), [twice])
    assert found.basis is Basis.OTHER_MODELS
    assert found.seconds == pytest.approx(2 * rule)


def test_another_recipes_time_says_nothing() -> None:
    found = estimate(work(), [Past(work(recipe="int8-trt"), 1000.0)])
    assert found.basis is Basis.RULE


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8", "int4"])
def test_every_step_of_every_precision_has_a_rule(kind: Kind, precision: str) -> None:
    assert estimate(Work(kind, "mine", 0.0, 0, "recipe", precision), ()).seconds > 0
