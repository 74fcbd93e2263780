from __future__ import annotations

import json
import math

import pytest

from mlctl.core.errors import MlctlError
from mlctl.rollout.domain.spec import DeploymentSettings, Revision, RolloutSpec, Slot, check_name
from mlctl.rollout.journal import records
from tests.support.rollouts import revision


def test_spec__written_as_json__is_read_back() -> None:
    spec = RolloutSpec(steps=(5, 100), max_p99_ms=50.0)
    assert records.value_from(RolloutSpec, json.loads(spec.to_json())) == spec


@pytest.mark.parametrize("steps", [(), (0, 100), (5, 5, 100), (50, 25, 100), (1, 50), (1, 101)])
def test_spec__steps_do_not_rise_to_100__are_rejected(steps: tuple[int, ...]) -> None:
    with pytest.raises(MlctlError, match="steps"):
        RolloutSpec(steps=steps)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_error_rate", 0.0),
        ("max_error_rate", 1.0),
        ("alpha", 0.0),
        ("min_requests", 0),
        ("max_p99_ms", 0.5),
        ("max_p99_ms", 60_001),
        ("step_seconds", -1.0),
        ("deadline_seconds", 0.0),
        ("margin", -0.1),
        ("step_seconds", math.inf),
        ("warmup_seconds", math.nan),
        ("bake_seconds", math.inf),
        ("deadline_seconds", math.inf),
        ("max_p99_ms", math.nan),
        ("alpha", math.nan),
    ],
)
def test_spec__value_out_of_range__is_named(name: str, value: float) -> None:
    with pytest.raises(MlctlError, match=name):
        RolloutSpec(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["shop", "a", "shop-2"])
def test_check_name__valid_name__is_returned(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "Shop", "../shop", "a b", "-a", "a-", "a" * 64, "a/b"])
def test_check_name__invalid_name__is_rejected(name: str) -> None:
    with pytest.raises(MlctlError, match="deployment name"):
        check_name(name)


def test_revision__short_digest_or_option_as_tag__is_rejected() -> None:
    with pytest.raises(MlctlError, match="digest"):
        Revision("digits:1", "abc", "m", "1", "s")
    with pytest.raises(MlctlError, match="bento"):
        Revision("--help", "0" * 64, "m", "1", "s")


def test_revision__name__is_the_bentos() -> None:
    assert revision("tiny:aa").name == "tiny"


def test_revision__several_models__keeps_their_digests() -> None:
    one = revision("tiny:aa")
    assert one.digests == (one.digest,)
    several = Revision("shop:1", "0" * 64, "m", "1", "s", models=("a" * 64, "b" * 64))
    assert several.digests == ("a" * 64, "b" * 64)
    assert records.value_from(Revision, json.loads(records.dumps(several))) == several


def test_slot__other__is_the_second_one() -> None:
    assert [slot.other for slot in Slot] == [Slot.GREEN, Slot.BLUE]


def test_spec__infinite_value__message_names_the_range() -> None:
    with pytest.raises(MlctlError) as caught:
        RolloutSpec(step_seconds=math.inf)
    assert caught.value.message == (
        "step_seconds = inf is out of range: input should be a finite number"
    )


@pytest.mark.parametrize("name", ["tick_seconds", "drain_seconds"])
def test_settings__non_finite_or_negative__are_rejected(name: str) -> None:
    for value in (math.inf, math.nan, -1.0):
        with pytest.raises(MlctlError, match=name):
            DeploymentSettings(**{name: value})  # type: ignore[arg-type]


def test_settings__zero_tick_seconds__is_rejected() -> None:
    with pytest.raises(MlctlError, match="tick_seconds"):
        DeploymentSettings(tick_seconds=0)
